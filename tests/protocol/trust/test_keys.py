"""One key is the peer."""

import pytest

from protocol.errors import FormatError, ResourceError
from protocol.trust.keys import load_or_create, signer_of


def test_an_identity_is_made_once_and_kept(tmp_path):
    first = load_or_create(tmp_path / "peer")
    again = load_or_create(tmp_path / "peer")
    assert (again.peer_id, again.public) == (first.peer_id, first.public)
    assert first.peer_id.startswith("Qm")


def test_only_the_owner_can_read_the_key(tmp_path):
    identity = load_or_create(tmp_path)
    assert identity.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_or_replace_is_refused_with_the_cure(tmp_path, mode):
    path = load_or_create(tmp_path).path
    path.chmod(mode)
    with pytest.raises(ResourceError, match=f"others on this machine may read: .* `chmod 600 {path}`"):
        load_or_create(tmp_path)
    path.chmod(0o400)
    assert load_or_create(tmp_path).path == path


def test_two_peers_have_two_identities(tmp_path):
    assert load_or_create(tmp_path / "a").peer_id != load_or_create(tmp_path / "b").peer_id


def test_a_file_that_is_no_key_is_named(tmp_path):
    path = tmp_path / "identity.key"
    path.write_bytes(b"not a key")
    path.chmod(0o600)
    with pytest.raises(ResourceError, match=r"identity\.key is not a hetpeer key"):
        load_or_create(tmp_path)


def test_a_signature_names_its_signer(tmp_path):
    identity = load_or_create(tmp_path)
    assert signer_of(identity.public, b"said", identity.sign(b"said")) == identity.peer_id


def test_a_signature_holds_for_its_key_and_its_message_alone(tmp_path):
    identity, other = load_or_create(tmp_path / "a"), load_or_create(tmp_path / "b")
    signature = identity.sign(b"said")
    for public, data, sign in (
        (identity.public, b"Said", signature),
        (other.public, b"said", signature),
        (identity.public, b"said", signature[::-1]),
        (identity.public, b"said", bytes(64)),
        (bytes(33), b"said", signature),
    ):
        with pytest.raises(FormatError, match="does not hold"):
            signer_of(public, data, sign)

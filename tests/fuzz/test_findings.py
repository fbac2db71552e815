"""What was found by fuzzing, and how it is now."""

import shutil
from pathlib import Path

import msgpack
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from bootstrap.admission.database import INVITATIONS, LOG
from bootstrap.admission.operator_lists import redeem
from examples.experiments.experiment import PAPER, cases, load_experiment
from examples.experiments.texts.decoders import osis_text
from peer.cli.options import duration
from peer.store.checkpoint import Checkpoint, candidates, write_checkpoint
from peer.store.served import ContributionStore
from protocol import manifest
from protocol.codec import snapshot
from protocol.errors import FormatError, ManifestError, ResourceError, TicketError, UserError
from protocol.identity import EMBEDDING
from protocol.manifest import check_manifest
from protocol.trust import certificates, proofs, signed
from protocol.trust.keys import load_or_create
from protocol.trust.proofs import CONTRIBUTION
from protocol.trust.records import unpack_record
from protocol.trust.ticket import find_ticket
from tests.fuzz import certified
from tests.fuzz.disk import recall_with, restore
from tests.fuzz.material import AUTHOR, AUTHORITY, MANIFEST, OPERATOR, RUN, card
from tests.fuzz.operators import BOOK, INVITATION, NOW, TOKEN, read_log
from tests.fuzz.typed import EXPERIMENT, TICKET_FIELDS, members, read_ticket_body, wheel
from tests.reference.small_manifest import small_manifest


@pytest.mark.parametrize("run", [2**40, 2**63])
def test_a_number_in_the_place_of_a_tickets_run_sets_aside_no_memory(run: int):
    with pytest.raises(TicketError):
        read_ticket_body(msgpack.packb([run, *TICKET_FIELDS[1:]]))


def test_a_long_line_that_is_no_ticket_is_no_file_either(tmp_path: Path):
    with pytest.raises(TicketError):
        find_ticket("x" * 5000, tmp_path)


def test_true_is_not_a_round():
    """It equals 1, and is written otherwise: keys of one contribution would differ between peers for ever."""
    fields = [RUN, EMBEDDING, True, bytes(32), 5, card(AUTHOR)]
    with pytest.raises(FormatError):
        proofs.read_entry(signed.sign_fields(AUTHOR, CONTRIBUTION, fields), [], AUTHORITY)


def test_lists_within_lists_in_a_snapshots_header_are_refused_unread():
    spam = b"\x95\x01\xa9embedding\x03\x81\xa1a\xdd" + (2**20).to_bytes(4, "big") + b"\x90" * 2**20
    with pytest.raises(FormatError):
        snapshot.parse_header(spam, MANIFEST)


def test_a_malformed_record_is_refused_in_one_line():
    with pytest.raises(FormatError) as refused:
        unpack_record(msgpack.packb({"peer_id": 1, "a\nb": 2}), AUTHORITY.read(card(AUTHOR)), AUTHORITY)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "data", [b'{"model": {"preset": []}}', b"[" * 100_000, b'{"model": {"preset": "nano", "rope_theta": 1e999}}']
)
def test_no_manifest_is_an_error_that_says_so(data: bytes):
    with pytest.raises(ManifestError):
        manifest.parse_manifest(data)


@pytest.mark.parametrize("text", ["run = 5", "a = " + "[" * 10_000, "a = " + "9" * 5000, "a" + ".a" * 5000 + " = 1"])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ManifestError):
        manifest.load_manifest(tmp_path / "run.toml", {"run.seed": 1})


@pytest.mark.parametrize("base", ["day = 1979-05-27", "run = 5", "replicas = 1"])
def test_a_field_where_a_table_belongs_is_an_error_of_the_experiment(tmp_path: Path, base: str):
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.replace("[base.model]", f"[base]\n{base}\n[base.model]"))
    with pytest.raises(ManifestError):
        cases(load_experiment(tmp_path / "experiment.toml", PAPER))


def test_numbers_that_the_wire_cannot_hold_are_no_manifests():
    assert check_manifest(small_manifest().model_dump()) == small_manifest()
    with pytest.raises(ManifestError, match=r"inner\.steps"):
        small_manifest(inner={"steps": 2**31})


@pytest.mark.parametrize("head", [[1, 2], [b"proof", [3]], [b"proof", 4], [b"no proof", []]])
def test_a_peer_starts_with_a_damaged_shelf(tmp_path: Path, head: list[object]):
    path = tmp_path / EMBEDDING / f"{1:08d}-{'ab' * 32}"
    path.parent.mkdir()
    path.write_bytes(msgpack.packb(head))
    (tmp_path / "revocations").mkdir()
    (tmp_path / "revocations" / "one").write_bytes(b"damaged")
    assert len(list(ContributionStore(tmp_path).found())) == (head == [b"no proof", []])
    assert restore(path) == []


def test_a_copied_checkpoint_folder_stops_nobody(tmp_path: Path):
    write_checkpoint(tmp_path, Checkpoint(1, 1, {}, {"w": torch.ones(2)}))
    shutil.copytree(tmp_path / "checkpoint-00000001", tmp_path / "checkpoint-old (copy)")
    assert len(candidates(tmp_path)) == 1


def test_a_key_with_a_password_is_none_of_ours(tmp_path: Path):
    locked = BestAvailableEncryption(b"secret")
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.DER, PrivateFormat.PKCS8, locked)
    (tmp_path / "identity.key").write_bytes(key)
    (tmp_path / "identity.key").chmod(0o600)
    with pytest.raises(ResourceError, match="not a hetpeer key"):
        load_or_create(tmp_path)


def test_a_name_that_is_no_text_is_a_damaged_archive(tmp_path: Path):
    data = bytearray(wheel().replace(b"a/one.txt", b"a/\xbene.txt"))
    data[data.index(b"PK\x01\x02") + 9] |= 8  # in the list of files: names are in UTF-8
    (tmp_path / "one.whl").write_bytes(data)
    with pytest.raises(FormatError):
        members(tmp_path / "one.whl")


def test_a_character_of_too_many_digits_is_a_damaged_text():
    with pytest.raises(FormatError):
        osis_text(f"&#{'9' * 5000};")


@pytest.mark.parametrize("at", [-(2**63), 2**40, 2**63])
def test_a_date_beyond_the_calendar_is_a_damaged_file_and_a_line_to_pass_over(tmp_path: Path, at: int):
    (tmp_path / INVITATIONS).write_bytes(BOOK.replace(str(INVITATION.expires).encode(), str(at).encode()))
    with pytest.raises(ResourceError, match="damaged"):
        redeem(tmp_path, TOKEN, AUTHOR.peer_id, NOW)
    (tmp_path / INVITATIONS).unlink()
    (tmp_path / LOG).write_text(f'{{"what": "noted", "at": {at}}}\n')
    assert read_log(tmp_path / LOG) == []


def test_what_is_no_time_is_not_quoted_whole():
    with pytest.raises(UserError) as refused:
        duration("x" * 10_000)
    assert len(str(refused.value)) < 200


def test_a_certificate_of_a_version_that_does_not_exist_is_refused():
    """cryptography raises InvalidVersion, which is no ValueError."""
    wrong = certified.content(certified.CERTIFIED).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09", 1)
    made = certified.pem(certified.signed_anew(OPERATOR, wrong))
    for read in (certificates.read_certificate, certificates.public_key):
        with pytest.raises(FormatError):
            read(made)


def test_a_certificate_on_disk_that_is_too_long_is_none(tmp_path: Path):
    """Else the peer would find it whole, and break on when it ends."""
    with pytest.raises(FormatError):
        certificates.public_key(certified.CERTIFIED + b"\n" * 2**20)


def test_a_certificate_on_disk_of_which_not_all_can_be_read_is_none():
    """Its key is right, and its name no text: whether it has ended cannot be told."""
    wrong = certified.content(certified.CERTIFIED).replace(b".hetpeer", b"\xffhetpeer")
    made = certified.pem(certified.signed_anew(OPERATOR, wrong))
    assert certificates.public_key(made) == AUTHOR.public
    assert recall_with("certificate")(certified.CERTIFIED) is not None
    assert recall_with("certificate")(made) is None

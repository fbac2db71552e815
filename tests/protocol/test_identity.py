"""Names, and who contributes to which part."""

from protocol.identity import EMBEDDING, contributes_to, stage_part


def test_a_volunteer_contributes_to_its_stage_a_datacenter_to_all_and_nobody_else_to_any():
    assert contributes_to("volunteer", 1, stage_part(1))
    assert not contributes_to("volunteer", 1, EMBEDDING)
    assert contributes_to("volunteer", 0, EMBEDDING)
    assert all(contributes_to("datacenter", 0, part) for part in (EMBEDDING, stage_part(0), stage_part(1)))
    assert not any(contributes_to(role, 0, stage_part(0)) for role in ("observer", "gateway"))

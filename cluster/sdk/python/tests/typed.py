"""Judged by pyright and never run: what nobody has checked can't be taken for what is proven."""

from coppice import Client, Committed, Record, Unverified, UnverifiedClient, Verified


def needs_proof(_: Verified[Record | None]) -> None: ...


def receipt_of(committed: Verified[Committed]) -> bytes:
    return committed.proof


def judge(client: Client, believing: UnverifiedClient) -> None:
    needs_proof(client.get("k"))
    needs_proof(believing.get("k"))  # pyright: ignore[reportArgumentType]
    receipt_of(client.put("k", "v"))
    receipt_of(client.session().put("k", "v"))
    receipt_of(believing.session().put("k", "v"))  # pyright: ignore[reportArgumentType]
    for page in client.range(prefix="k"):
        print(page.version, [record.key for record in page.value])
    for page in believing.range(prefix="k"):
        page.version  # pyright: ignore
    history: Unverified[object] = client.history("k")
    history.proof  # pyright: ignore
    client.get("k").value.value  # pyright: ignore[reportOptionalMemberAccess]

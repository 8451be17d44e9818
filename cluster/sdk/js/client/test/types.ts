// Compiled, not run: no answer that nobody has checked passes for a proven one.
import { Batch, Client, Refused, UnverifiedClient, type Record, type Verified } from "@coppice/client";

export async function proven(vkey: string): Promise<Verified<Record | null>> {
  const ledger = await Client.open(["http://127.0.0.1:7401"], { trust: vkey, store: { load: () => null, save: () => {} } });
  const session = await ledger.session();
  const done = await session.commit(new Batch().put("a", new Uint8Array()).delete("b"));
  for await (const page of ledger.range({ prefix: "a", page: 10 })) page.value[0]?.key.length;
  await ledger.put("a", "1", { ifChanged: done.version, signal: AbortSignal.timeout(1) });
  return ledger.get("a", { version: done.version.version });
}

export async function wrong(vkey: string): Promise<void> {
  const believing = await UnverifiedClient.open("http://127.0.0.1:7401");
  // @ts-expect-error nobody has checked it
  const _taken: Verified<Record | null> = await believing.get("a");
  // @ts-expect-error somebody must be trusted
  await Client.open("http://127.0.0.1:7401", {});
  const ledger = await Client.open("http://127.0.0.1:7401", { trust: vkey });
  // @ts-expect-error prefix stands in place of low
  ledger.range({ prefix: "a", low: "b" });
  // @ts-expect-error the option is `version`
  await ledger.get("a", { at: 1 });
  // @ts-expect-error a client is opened
  new Client();
  const record = (await ledger.get("a")).value;
  // @ts-expect-error there may be no record
  record.value;
  await ledger.put("a", "1").catch((error: unknown) => (error instanceof Refused ? error.reason : ""));
}

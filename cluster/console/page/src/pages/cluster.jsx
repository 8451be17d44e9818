// Who runs the ledger, and who watches it. Most of it is the coordinator's word.
import * as api from "../api.js";
import { proveHead, trust } from "../ledger.js";
import { Badge, Command, Fact, Facts, Found, Hash, Key, Strange, useTask } from "../parts.jsx";
import { bytesOfHex, count, size, stamp, time, visible } from "../text.js";

/** The lines of signatures below a note. */
function linesOf(note) {
  return note.split("\n").filter((line) => line.startsWith("\u2014 ")).map((line) => {
    const [, name, signature = ""] = line.split(" ");
    return { name, signature };
  });
}

export function Members() {
  const task = useTask(async () => {
    const head = await proveHead();
    const note = await api.text("v1/checkpoint");
    return { head, lines: linesOf(note), origin: note.split("\n")[0] };
  }, []);
  return (
    <>
      <h1>Members</h1>
      <p>Members run cosigners: each mirrors the log, and signs only what goes on from what it signed before.</p>
      <Found of={task} what="Asking for a checkpoint, and verifying its signatures">
        {({ head: { result, badge }, lines, origin }) => (
          <>
            <h2>Counted by your policy</h2>
            {result.cosignatures === null ? (
              <>
                <p class="empty">No policy was given: nobody can say whose signatures count for you.</p>
                <Command>{"coppice console --trust @ledger.vkey --policy policy.txt"}</Command>
              </>
            ) : (
              <div class="scroll" tabIndex="0" role="region" aria-label="Cosigners of the policy">
                <table>
                  <thead><tr><th scope="col">Witness</th><th scope="col">Key</th><th scope="col">Signed at</th><th scope="col">Size</th><th scope="col">Shown by</th></tr></thead>
                  <tbody>
                    {result.cosignatures.map((it) => (
                      <tr key={it.key_name}>
                        <th scope="row"><Strange text={it.witness} /></th>
                        <td><Strange text={it.key_name} /></td>
                        <td>{time(Number(it.time) * 1000)}</td>
                        <td>{count(result.checkpoint.size)}</td>
                        <td><Badge is={badge} /></td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
            <h2>All lines on the newest note</h2>
            <p>Anybody can add a line under any name, so a line counts only if the policy names its key.</p>
            <div class="scroll" tabIndex="0" role="region" aria-label="Signature lines">
              <table>
                <thead><tr><th scope="col">Name</th><th scope="col">Signature</th><th scope="col">Shown by</th></tr></thead>
                <tbody>
                  {lines.map(({ name, signature }, at) => (
                    <tr key={at}>
                      <th scope="row"><Strange text={name} />{name === origin && <span class="dim"> (the ledger)</span>}</th>
                      <td><Hash of={signature} what="Signature" /></td>
                      <td><Badge is="said" /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </>
        )}
      </Found>
    </>
  );
}

function Bar({ of, most, label }) {
  const width = most > 0 ? Math.max(1, Math.round((100 * of) / most)) : 0;
  return (
    <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect width="100" height="8" class="track" /><rect width={width} height="8" class="fill" />
    </svg>
  );
}

function Group({ group, most }) {
  const bound = (text) => (text === null ? "the end" : text === "0x" ? "the beginning" : <Key bytes={bytesOfHex(text) ?? new Uint8Array()} max={40} />);
  return (
    <section class="group">
      <h2>{visible(group.group)}</h2>
      {group.group !== "root" && (
        <Facts label={group.group}>
          <Fact name="Keys" badge="said">from {bound(group.low)} to {bound(group.high)}</Fact>
          <Fact name="Entries" badge="said">{count(group.entries)} in {count(group.trees)} {group.trees === 1 ? "tree" : "trees"}</Fact>
          {group.digest && <Fact name="Digest" badge="said"><Hash of={group.digest} what="Digest" /></Fact>}
        </Facts>
      )}
      <div class="scroll" tabIndex="0" role="region" aria-label={`Replicas of ${group.group}`}>
        <table>
          <thead><tr><th scope="col">Node</th><th scope="col">Role</th><th scope="col" class="right">Applied</th><th scope="col">On disk</th><th scope="col">Note</th></tr></thead>
          <tbody>
            {group.replicas.map((replica) => (
              <tr key={replica.raft_id}>
                <th scope="row"><Strange text={replica.node} /></th>
                <td>{visible(replica.role)}</td>
                <td class="right">{count(replica.applied)}</td>
                <td><Bar of={Number(replica.bytes_on_disk)} most={most} label={size(replica.bytes_on_disk)} /> {size(replica.bytes_on_disk)}</td>
                <td>{replica.note ? <Strange text={replica.note} /> : <span class="dim">none</span>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function Cluster() {
  const task = useTask(() => api.json("v1/status"), []);
  return (
    <>
      <h1>Cluster</h1>
      <Found of={task} what="Asking for the state of the cluster">
        {(status) => {
          const most = Math.max(0, ...status.groups.flatMap((group) => group.replicas.map((it) => Number(it.bytes_on_disk))));
          const lost = [...status.unreachable.map((node) => `node ${node} does not answer`), ...status.without_majority.map((group) => `${group} has no majority`)];
          return (
            <>
              <p>All of this page is <Badge is="said" />: one coordinator tells it, and nobody signs it.</p>
              <Facts label="The cluster">
                <Fact name="Head" badge="said">{status.version === null ? "unknown: the root group does not answer" : stamp(status)}</Fact>
                <Fact name="Leads" badge="said"><Strange text={status.leader || "nobody"} />, in term {count(status.term)}</Fact>
                <Fact name="Trouble" badge="said">{lost.length === 0 ? "none" : lost.map((it) => <span class="why" key={it}><Strange text={it} /> </span>)}</Fact>
                <Fact name="Asked">{trust().settings?.endpoints?.join(", ") ?? ""}</Fact>
              </Facts>
              {status.groups.map((group) => <Group key={group.group} group={group} most={most} />)}
              <p class="actions"><button type="button" class="main" onClick={task.again}>Ask again</button></p>
            </>
          );
        }}
      </Found>
    </>
  );
}


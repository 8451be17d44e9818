//! A proxy that shows one member and one client another log than everybody else, under the ledger's
//! own key: who finds it, what a third party says, and what becomes of changed evidence.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs, io,
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

use coppice_env::{Rng, SimRng};
use coppice_types::Digest;
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::Cosigner,
    evidence::{self, Evidence, Shown},
    note::{SignerKey, VerifierKey},
};

use super::{
    common::{Dev, coppice, run},
    copy, cosigned, eventually, free_port, go_tool, http_get,
    member::Member,
    put, small,
};

/// Seed of the changes of evidence.
const SEED: u64 = 10;
const MUTANTS: usize = 1000;
/// Of so many mutants, one is given to the command, too.
const COMMAND_EVERY: usize = 40;

/// A port of the proxy. The callers of each port are shown the server of its choice.
struct Face {
    port: u16,
    shown: Arc<AtomicU16>,
}

impl Face {
    fn new(shown: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let port = listener.local_addr().expect("it listens").port();
        let face = Self { port, shown: Arc::new(AtomicU16::new(shown)) };
        let shown = face.shown.clone();
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                // A caller whose server is away is hung up on.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", shown.load(Ordering::SeqCst))) {
                    pass(&caller, &server);
                    pass(&server, &caller);
                }
            }
        });
        face
    }

    fn show(&self, port: u16) {
        self.shown.store(port, Ordering::SeqCst);
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Passes bytes on until one of both ends.
fn pass(from: &TcpStream, to: &TcpStream) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("there are free descriptors");
    let (mut from, mut to) = (clone(from), clone(to));
    thread::spawn(move || {
        // Whatever ends one way ends both.
        let _ = io::copy(&mut from, &mut to);
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

/// A ledger of which everybody is shown one side.
struct Side {
    dev: Dev,
    port: u16,
}

impl Side {
    /// Starts the ledger in a folder. It asks these members.
    fn start(dir: &Path, port: u16, asks: &[&Member]) -> Self {
        let names: Vec<&str> = asks.iter().map(|member| member.line.split(' ').nth(1).expect("a name")).collect();
        let lines: String = asks.iter().map(|member| member.line.as_str()).collect();
        let policy = dir.with_extension("policy");
        let vkey = fs::read_to_string(dir.join("ledger.vkey")).expect("the public key");
        fs::write(&policy, format!("log {vkey}{lines}group g all {}\nquorum g\n", names.join(" ")))
            .expect("it is written");
        let (listen, policy) = (format!("127.0.0.1:{port}"), policy.display().to_string());
        Self { dev: Dev::start(dir, &small(&["--http-listen", &listen, "--witness-policy", &policy])), port }
    }

    /// The port of its API.
    fn api(&self) -> u16 {
        let port = self.dev.endpoint.rsplit_once(':').expect("a port").1;
        port.parse().expect("a number")
    }

    /// The published checkpoint, once it has these members' lines and the newest version.
    fn cosigned_by(&self, members: &[&Member]) -> String {
        let size = self.dev.version() + 1;
        eventually("the members have cosigned", || {
            let note = http_get(self.port, "/checkpoint");
            let published = Checkpoint::claimed(note.as_bytes()).expect("a checkpoint").size;
            published >= size && members.iter().all(|member| member.has_cosigned(note.as_bytes()))
        });
        http_get(self.port, "/checkpoint")
    }
}

#[test]
fn a_proxy_that_shows_two_logs_is_convicted_before_a_third_party() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let (honest_dir, twin_dir) = (work.path().join("honest"), work.path().join("twin"));
    fs::create_dir(&honest_dir).expect("a new directory");
    run(coppice().args(["keygen", "--out"]).arg(honest_dir.join("ledger.key"))).expect(0);
    let vkey = fs::read_to_string(honest_dir.join("ledger.vkey")).expect("the public key").trim().to_owned();
    let (honest_port, twin_port) = (free_port(), free_port());
    let (to_a, to_b, to_client) = (Face::new(honest_port), Face::new(honest_port), Face::new(0));
    let [a, b] =
        [("acme", &to_a), ("bolt", &to_b)].map(|(name, face)| Member::new(work.path(), name, &vkey, &face.url()));
    a.knows(&b);
    b.knows(&a);
    let _running = (a.start(), b.start());
    let honest = Side::start(&honest_dir, honest_port, &[&a, &b]);
    to_client.show(honest.api());
    put(&honest.dev, 1);
    let before = honest.cosigned_by(&[&a, &b]);
    let size = Checkpoint::claimed(before.as_bytes()).expect("a checkpoint").size;
    assert_eq!(text_of(&checkpoint(&to_client.url(), size)), text_of(&before));
    honest.dev.stop();
    // From here on B and the client are shown the twin, which asks B alone, as the ledger asks A.
    copy(&honest_dir, &twin_dir);
    to_b.show(twin_port);
    let (honest, twin) = (Side::start(&honest_dir, honest_port, &[&a]), Side::start(&twin_dir, twin_port, &[&b]));
    to_client.show(twin.api());
    (2..5).for_each(|value| put(&twin.dev, value * 10));
    (2..9).for_each(|value| put(&honest.dev, value));
    eventually("one of the members has evidence", || a.has_halted() || b.has_halted());
    let found = [&a, &b].iter().find_map(|member| member.evidence().pop()).expect("it halted by evidence");
    let court = work.path().join("court");
    fs::create_dir(&court).expect("a new directory");
    fs::write(court.join("found"), &found).expect("it is written");
    a_third_party_says_who_signed_both(&court, &vkey, [&a, &b]);
    // The client's checkpoint is evidence for the member who was shown the other log.
    put(&twin.dev, 50);
    let shown = checkpoint(&to_client.url(), size + 4);
    let grown = checkpoint(&honest.dev.endpoint, size + 7);
    fs::write(file("shown"), &shown).expect("it is written");
    fs::write(file("grown"), &grown).expect("it is written");
    let report = run(coppice().args(["evidence", "report", &file("shown"), "--to", &a.url()]));
    assert!(report.expect(1).stdout.contains("says: evidence"));
    let log = format!("http://127.0.0.1:{honest_port}");
    let mut make = coppice();
    make.args(["evidence", "make", &file("shown"), &file("grown"), "--from", &log, "--out", &file("other")]);
    run(&mut make).expect(0);
    let other = fs::read(file("other")).expect("it was made");
    let notes = [before, shown, grown, stranger(&vkey)].map(String::into_bytes);
    no_mutant_verifies(&court, &vkey, found.as_bytes(), &Parts { other: &other, notes: &notes });
    honest.dev.stop();
    twin.dev.stop();
}

/// A third party has the file and the key alone.
fn a_third_party_says_who_signed_both(court: &Path, vkey: &str, members: [&Member; 2]) {
    let verify = |more: &[&str]| {
        let mut command = coppice();
        run(command.current_dir(court).args(["evidence", "verify", "found", "--key", vkey]).args(more))
    };
    let verdict = verify(&["--json"]).expect(0).json();
    assert_eq!(
        (&verdict["kind"], &verdict["one_key"], &verdict["a"]["signed_by"], &verdict["b"]["signed_by"]),
        (&"contradiction".into(), &true.into(), &vkey.into(), &vkey.into())
    );
    let said = verify(&[]).expect(0).stdout;
    assert!(said.contains(&format!("CONVICTED: the holder of {vkey}, which signed both")), "{said}");
    // No member signed both logs.
    fs::write(court.join("policy"), format!("{}{}quorum none\n", members[0].line, members[1].line))
        .expect("it is written");
    let named = verify(&["--policy", "policy"]).expect(0).stdout;
    assert_eq!(named.matches("CONVICTED").count(), 1, "{named}");
}

/// The checkpoint that an API shows, once it has so many entries.
fn checkpoint(api: &str, size: u64) -> String {
    let show = || run(coppice().args(["--endpoint", api, "checkpoint"])).expect(0).stdout;
    let is_grown = |note: String| Checkpoint::claimed(note.as_bytes()).expect("a checkpoint").size >= size;
    eventually("the checkpoint has grown", || is_grown(show()));
    show()
}

/// The signed part of a note.
fn text_of(note: &str) -> &str {
    note.split_once("\n\n").expect("a note").0
}

/// A checkpoint by another key of the same name.
fn stranger(vkey: &str) -> String {
    let name = vkey.split('+').next().expect("a name");
    let signer = SignerKey::from_seed(name, &[7; 32]).expect("a name");
    Checkpoint { origin: name.to_owned(), size: 5, root: Digest([5; 32]) }.sign(&signer).expect("its own origin")
}

/// What splices are made of.
struct Parts<'a> {
    other: &'a [u8],
    notes: &'a [Vec<u8>],
}

/// Each mutant that verifies is a contradiction for a program that knows nothing of Coppice.
fn no_mutant_verifies(court: &Path, vkey: &str, file: &[u8], parts: &Parts<'_>) {
    let key = VerifierKey::parse(vkey).expect("a public key");
    assert!(evidence::verify(file, &key, None).is_ok() && evidence::verify(parts.other, &key, None).is_ok());
    let (judge, path) = (go_tool("judge", "judge", "."), court.join("mutant"));
    let mut rng = SimRng::new(SEED);
    let (mut mutants, mut refused) = (BTreeSet::new(), 0);
    while mutants.len() < MUTANTS {
        let mutant = mutant(&mut rng, file, parts);
        if mutant == file || mutant == parts.other || !mutants.insert(mutant.clone()) {
            continue;
        }
        let verifies = evidence::verify(&mutant, &key, None).is_ok();
        refused += usize::from(!verifies);
        let by_command = mutants.len() % COMMAND_EVERY == 0;
        if verifies || by_command {
            fs::write(&path, &mutant).expect("it is written");
        }
        if verifies {
            run(Command::new(&judge).arg(&path).arg(vkey)).expect(0);
        }
        if by_command {
            let command = run(coppice().args(["evidence", "verify", "--key", vkey]).arg(&path));
            command.expect(i32::from(!verifies));
        }
    }
    // Only lines of witnesses can be changed, or added to: nothing verifies them without a policy.
    assert!(refused > MUTANTS / 2 && refused < MUTANTS, "{refused} were refused");
}

fn mutant(rng: &mut SimRng, file: &[u8], parts: &Parts<'_>) -> Vec<u8> {
    let mut changed = file.to_vec();
    let mut below = |bound: usize| usize::try_from(rng.below(bound as u64)).expect("below a size");
    let (at, kind) = (below(file.len()), below(10));
    let end = at + below(file.len() - at + 1);
    match kind {
        0 | 1 => changed[at] ^= 1 << below(8),
        2 => changed[at] = u8::try_from(below(256)).expect("a byte"),
        3 => changed.truncate(at),
        4 => drop(changed.drain(at..end)),
        5 => changed = [&file[..end], &file[at..]].concat(),
        6 => changed = [&file[..at], &parts.other[below(parts.other.len() + 1)..]].concat(),
        7 => {
            let mut lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
            let (one, other) = (below(lines.len()), below(lines.len()));
            lines.swap(one, other);
            changed = lines.concat();
        }
        8 => changed = with_other_notes(below, file, parts),
        _ => changed = with_a_line(below, file),
    }
    changed
}

/// The same claim, with a line of an unknown witness on one of the notes.
fn with_a_line(mut below: impl FnMut(usize) -> usize, file: &[u8]) -> Vec<u8> {
    let mut evidence = Evidence::decode(file).expect("it verifies");
    let witness = Cosigner::from_seed("witness.example/w", &[8; 32]).expect("a name");
    let note = if below(2) == 0 { &mut evidence.a } else { &mut evidence.b };
    let text = str::from_utf8(note).expect("a note is text");
    *note = Cow::Owned(cosigned(&witness, text, below(1 << 30) as u64));
    evidence.encode().expect("a line is short")
}

/// The same claim about other notes, with a size and a root that fit note A or B, or fit neither.
fn with_other_notes(mut below: impl FnMut(usize) -> usize, file: &[u8], parts: &Parts<'_>) -> Vec<u8> {
    let mut evidence = Evidence::decode(file).expect("it verifies");
    let Evidence { a, b, shown, path, .. } = &mut evidence;
    std::mem::swap(a, b);
    for note in [&mut *a, &mut *b] {
        if let Some(other) = parts.notes.get(below(parts.notes.len() + 1)) {
            *note = Cow::Borrowed(other);
        }
    }
    let claimed = [a, b].map(|note| Checkpoint::claimed(note).expect("a checkpoint"));
    if let (Some(of_root), Shown::Root { size, root }) = (claimed.get(below(3)), shown) {
        (*size, *root) = (claimed[0].size, of_root.root);
    }
    path.truncate(below(path.len() + 1));
    evidence.encode().expect("it is no longer than before")
}

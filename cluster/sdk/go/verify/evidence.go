package verify

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	evidenceBytesMax = 256 << 10
	evidencePathMax  = 64
	evidenceMagic    = "coppice-evidence/v1"
)

// EvidenceKind tells what an evidence file proves (section 20).
type EvidenceKind string

// The kinds of evidence.
const (
	// EvidenceContradiction is a log with another root than the one that note A signed.
	EvidenceContradiction EvidenceKind = "contradiction"
	// EvidenceLate is a note A that a replaced key signed.
	EvidenceLate EvidenceKind = "late"
)

// Evidence is what an evidence file proves.
type Evidence struct {
	Kind EvidenceKind
	A, B EvidenceNote
	// Root is the root of B's log at the size of A, in a contradiction.
	Root Digest
	// Index is the entry of B's log that replaces the key of A by New, in a late signature.
	Index uint64
	New   VKey
	// Cosigners are the witnesses of the policy that are convicted by lines on both notes.
	Cosigners []EvidenceCosigner
	// Unknown are the lines on both notes that are of no known key. They prove nothing.
	Unknown []UnknownCosigner
}

// EvidenceNote is a checkpoint, and the ledger's key that signed it.
type EvidenceNote struct {
	Checkpoint Checkpoint
	SignedBy   VKey
}

// EvidenceCosigner is a witness that cosigned both notes, with the newest time on each.
type EvidenceCosigner struct {
	Witness      string
	KeyName      string
	TimeA, TimeB uint64
}

// UnknownCosigner is the name and the key id on a line that nobody has verified.
type UnknownCosigner struct {
	KeyName string
	KeyID   [4]byte
}

// OneKey tells whether one key signed both notes. Its holder is convicted then. With two keys, at
// least one of the two holders is, and the file does not say which.
func (e *Evidence) OneKey() bool { return e.A.SignedBy == e.B.SignedBy }

// VerifyEvidence judges an evidence file by a key of the ledger. A policy names the witnesses to be
// judged; its logs do not matter. It is nil for none.
func VerifyEvidence(file []byte, key VKey, policy *Policy) (*Evidence, error) {
	parsed, err := decodeEvidence(file)
	if err != nil {
		return nil, under(StepFormat, err)
	}
	keys, err := evidenceKeys(parsed.changes, key)
	if err != nil {
		return nil, under(StepKeys, err)
	}
	a, err := openEvidence(parsed.a, keys)
	if err != nil {
		return nil, under(StepNotes, err)
	}
	b, err := openEvidence(parsed.b, keys)
	if err != nil {
		return nil, under(StepNotes, err)
	}
	found := &Evidence{Kind: parsed.kind}
	var signer VKey
	if parsed.kind == EvidenceContradiction {
		signer, err = found.contradiction(parsed, a, b)
	} else {
		signer, err = found.late(parsed, a, b)
	}
	if err != nil {
		return nil, err
	}
	found.A = EvidenceNote{Checkpoint: a.checkpoint, SignedBy: signer}
	found.B = EvidenceNote{Checkpoint: b.checkpoint, SignedBy: signer}
	if !slices.Contains(b.by, signer) {
		found.B.SignedBy = b.by[0]
	}
	found.cosigners(a, b, keys, policy)
	return found, nil
}

func (e *Evidence) contradiction(file *evidenceFile, a, b *openedNote) (signer VKey, err error) {
	if file.size != a.checkpoint.Size || file.size > b.checkpoint.Size {
		return signer, fail(StepNotes, "the size is not that of note a, or note b is smaller")
	}
	if file.size == 0 {
		// An empty log begins every log.
		if len(file.path) > 0 || file.root != emptyRoot {
			return signer, fail(StepProof, "the path from an empty log")
		}
	} else if err := checkConsistency(file.size, file.root, b.checkpoint.Size, b.checkpoint.Root, file.path); err != nil {
		return signer, under(StepProof, err)
	}
	if file.root == a.checkpoint.Root {
		return signer, fail(StepConflict, "the log of note b goes on from that of note a")
	}
	e.Root = file.root
	for _, key := range a.by {
		if slices.Contains(b.by, key) {
			return key, nil
		}
	}
	return a.by[0], nil
}

func (e *Evidence) late(file *evidenceFile, a, b *openedNote) (signer VKey, err error) {
	header, err := DecodeHeader(file.entry)
	if err != nil {
		return signer, under(StepProof, err)
	}
	cluster, named := clusterOf(b.checkpoint.Origin)
	if !named || header.Cluster != cluster || header.Sequence != file.index || header.KeyChange == nil {
		return signer, fail(StepProof, "the entry is no key change of this ledger at this index")
	}
	log := b.checkpoint
	if err := checkInclusion(logEntryHash(file.entry), file.index, log.Size, file.path, log.Root); err != nil {
		return signer, under(StepProof, err)
	}
	signer = VKey{Name: log.Origin, Key: header.KeyChange.Old}
	if a.checkpoint.Size <= file.index || !slices.Contains(a.by, signer) {
		return signer, fail(StepConflict, "note a is from before the key change, or signed by another key")
	}
	e.Index, e.New = file.index, VKey{Name: log.Origin, Key: header.KeyChange.New}
	return signer, nil
}

// cosigners finds the lines that are on both notes.
func (e *Evidence) cosigners(a, b *openedNote, keys []VKey, policy *Policy) {
	known := map[UnknownCosigner]bool{}
	for _, key := range keys {
		known[UnknownCosigner{key.Name, keyID(key.Name, algorithmEd25519, key.Key[:])}] = true
	}
	if policy != nil {
		for _, name := range policy.names {
			witness := name.witness
			if witness == nil {
				continue
			}
			known[UnknownCosigner{witness.name, witness.id}] = true
			onA, onB := witness.newest(&a.note), witness.newest(&b.note)
			if e.Kind == EvidenceContradiction && onA > 0 && onB > 0 {
				e.Cosigners = append(e.Cosigners, EvidenceCosigner{name.name, witness.name, onA, onB})
			}
		}
	}
	onB := map[UnknownCosigner]bool{}
	for _, line := range b.note.lines {
		onB[UnknownCosigner{line.name, line.id}] = true
	}
	for _, line := range a.note.lines {
		name := UnknownCosigner{line.name, line.id}
		if onB[name] && !known[name] {
			e.Unknown = append(e.Unknown, name)
			known[name] = true
		}
	}
}

// evidenceKeys gives the known keys, the trusted one first. The keys of changes that hang together
// are all known if one of them is.
func evidenceKeys(changes []signedChange, trusted VKey) ([]VKey, error) {
	var found []VKey
	for i := range changes {
		change := &changes[i]
		cluster, named := clusterOf(trusted.Name)
		if !named {
			return nil, errors.New("the name of the trusted key ends in no cluster id")
		}
		if err := change.check(cluster); err != nil {
			return nil, err
		}
		ends := []VKey{{trusted.Name, change.Old}, {trusted.Name, change.New}}
		if i > 0 && !slices.Contains(found, ends[0]) && !slices.Contains(found, ends[1]) {
			return nil, errors.New("a key change has no key of those before it")
		}
		for _, key := range ends {
			if !slices.Contains(found, key) {
				found = append(found, key)
			}
		}
	}
	if len(found) > 0 && !slices.Contains(found, trusted) {
		return nil, errors.New("the key changes do not lead from the trusted key")
	}
	keys := []VKey{trusted}
	for _, key := range found {
		if key != trusted {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// clusterOf reads the cluster id at the end of an origin.
func clusterOf(origin string) (cluster ClusterID, found bool) {
	at := strings.LastIndexByte(origin, '/')
	digits := origin[at+1:]
	decoded, err := hex.DecodeString(digits)
	if at < 0 || err != nil || len(decoded) != len(cluster) || hex.EncodeToString(decoded) != digits {
		return cluster, false
	}
	return ClusterID(decoded), true
}

// openedNote is a note with the known keys that signed it.
type openedNote struct {
	note       signedNote
	checkpoint Checkpoint
	by         []VKey
}

func openEvidence(note []byte, keys []VKey) (*openedNote, error) {
	parsed, err := parseNote(note)
	if err != nil {
		return nil, err
	}
	opened := &openedNote{note: parsed}
	for _, key := range keys {
		checkpoint, err := parsed.opened(key)
		switch {
		case errors.Is(err, errUnsigned):
			continue
		case err != nil:
			return nil, err
		}
		opened.checkpoint, opened.by = checkpoint, append(opened.by, key)
	}
	if len(opened.by) == 0 {
		return nil, errUnsigned
	}
	return opened, nil
}

// evidenceFile is a parsed evidence file.
type evidenceFile struct {
	kind    EvidenceKind
	changes []signedChange
	size    uint64
	root    Digest
	index   uint64
	entry   []byte
	path    hashList
	a, b    []byte
}

func decodeEvidence(file []byte) (*evidenceFile, error) {
	if len(file) > evidenceBytesMax {
		return nil, errors.New("an evidence file is above 256 KiB")
	}
	text := &evidenceText{rest: file}
	if text.line() != evidenceMagic {
		return nil, errors.New("not an evidence file of this format")
	}
	parsed := &evidenceFile{kind: EvidenceKind(text.line())}
	for _, body := range text.all("key", keyChangesMax) {
		r := reader{rest: body}
		parsed.changes = append(parsed.changes, readKeyChange(&r))
		if err := r.end(); err != nil {
			return nil, err
		}
	}
	switch parsed.kind {
	case EvidenceContradiction:
		parsed.size = text.decimal("size", checkpointSizeEnd-1)
		parsed.root = text.digest("root")
	case EvidenceLate:
		parsed.index = text.decimal("index", checkpointSizeEnd-1)
		parsed.entry = text.base64("entry")
		if len(parsed.entry) > headerBytesMax {
			return nil, errors.New("the entry is above 65,534 bytes")
		}
	default:
		return nil, errors.New("neither contradiction nor late")
	}
	for _, hash := range text.all("proof", evidencePathMax) {
		if len(hash) != len(Digest{}) {
			return nil, errors.New("a hash has 32 bytes")
		}
		parsed.path = append(parsed.path, hash...)
	}
	parsed.a, parsed.b = text.note("a"), text.note("b")
	if len(text.rest) > 0 && text.err == nil {
		text.err = errTrailing
	}
	return parsed, text.err
}

// evidenceText reads lines. It keeps its first error and gives nothing after it.
type evidenceText struct {
	rest []byte
	err  error
}

func (t *evidenceText) line() string {
	line, rest, found := bytes.Cut(t.rest, []byte{'\n'})
	if !found || !utf8.Valid(line) {
		t.fail()
		return ""
	}
	t.rest = rest
	return string(line)
}

func (t *evidenceText) fail() {
	t.rest = nil
	if t.err == nil {
		t.err = errors.New("a line of the file is missing or malformed")
	}
}

// word gives what follows the name of a line.
func (t *evidenceText) word(name string) string {
	word, found := strings.CutPrefix(t.line(), name+" ")
	if !found {
		t.fail()
	}
	return word
}

func (t *evidenceText) base64(name string) []byte {
	decoded, err := decodeBase64(t.word(name))
	if err != nil {
		t.fail()
	}
	return decoded
}

func (t *evidenceText) digest(name string) (digest Digest) {
	if decoded := t.base64(name); copy(digest[:], decoded) != len(digest) || len(decoded) != len(digest) {
		t.fail()
	}
	return digest
}

// all gives the values of the next lines of a name.
func (t *evidenceText) all(name string, most int) (values [][]byte) {
	for bytes.HasPrefix(t.rest, []byte(name+" ")) {
		if len(values) == most {
			t.fail()
			return nil
		}
		values = append(values, t.base64(name))
	}
	return values
}

func (t *evidenceText) decimal(name string, most uint64) uint64 {
	value, err := parseDecimal(t.word(name))
	if err != nil || value > most {
		t.fail()
	}
	return value
}

func (t *evidenceText) note(name string) []byte {
	length := t.decimal(name, noteBytesMax)
	if length > uint64(len(t.rest)) {
		t.fail()
		return nil
	}
	note := t.rest[:length:length]
	t.rest = t.rest[length:]
	return note
}

package verify

import (
	"errors"
	"slices"
	"strings"
)

// Options adds to what a verifier knows.
type Options struct {
	// Newer is a newer checkpoint: a standing proof, or the bare note of a checkpoint of the same
	// size. The proof is then judged by it (section 13, step 11). It is nil for none.
	Newer []byte
	// Known are key changes of the ledger that were proven before.
	Known []KeyChange
}

// Verified is what a proof file says, and by which keys.
type Verified struct {
	Cluster    ClusterID
	Kind       FileKind
	Checkpoint Checkpoint
	// Note is the signed checkpoint. Keep it: two of them that are not of one log are evidence of a
	// fork.
	Note []byte
	// SignedBy is the ledger's key that signed the checkpoint.
	SignedBy VKey
	// Newest is the newest header below the checkpoint, and NewestEntry the EntryHash of its bytes.
	Newest      *Header
	NewestEntry Digest
	// KeyChanges are the key changes that are known now: from the file, from the newer checkpoint, or
	// from before.
	KeyChanges []KeyChange
	// Newer is the newer checkpoint, if one was given.
	Newer *Checkpoint
	// NewerNote is the newer checkpoint as it is signed.
	NewerNote []byte
	// Header is the version's header, or nil for a standing proof. In an interval proof it is any
	// header of the log, and its version need not stand.
	Header *Header
	// Entry is the EntryHash of the header's bytes.
	Entry Digest
	// Next is the epoch pair after that of the version: the rollback that ended its epoch. It is nil
	// in the newest epoch.
	Next *Pair

	// One of these is set, as Kind says.
	Query    *Query
	Receipt  *Receipt
	Standing *Standing
	Journals *Journals
	Time     *VersionTime
	Lineage  *Lineage
	Interval *Interval
}

// Receipt is the claim of a receipt: the journal of the version has this batch.
type Receipt struct {
	Index uint32
	Batch *Entry
	// Hash is the batch's JournalLeafHash.
	Hash Digest
}

// Standing is the claim of a standing proof: the checkpoint extends the old one.
type Standing struct {
	OldSize uint64
	OldRoot Digest
	Pairs   []Pair
}

// Verify judges a proof file by the key of a ledger. Its error is an *Error that names the step.
// Slices of the result are parts of the file.
func Verify(file []byte, key VKey, options *Options) (*Verified, error) {
	verified, _, err := judge(file, key, options)
	return verified, err
}

// underPolicy names the step at which a policy refuses the newest checkpoint: that of the
// checkpoint if a line of a known key is wrong, and its own if too few witnesses count.
func underPolicy(err error, options *Options) error {
	switch {
	case !errors.Is(err, errBadSignature):
		return under(StepCosignatures, err)
	case options != nil && options.Newer != nil:
		return under(StepStanding, err)
	}
	return under(StepCheckpoint, err)
}

// VerifyUnder judges a proof file by a policy: a log of it has signed, and enough witnesses have
// cosigned the newest checkpoint that is shown (section 13, step 12).
func VerifyUnder(file []byte, policy *Policy, options *Options) (*Verified, error) {
	parsed, err := decodeFile(file)
	if err != nil {
		return nil, under(StepFormat, err)
	}
	note, err := parseNote(parsed.log.note)
	if err != nil {
		return nil, under(StepCheckpoint, err)
	}
	checkpoint, err := note.checkpoint()
	if err != nil {
		return nil, under(StepCheckpoint, err)
	}
	var first error
	for _, log := range policy.logsOf(checkpoint.Origin) {
		verified, newest, err := judge(file, log, options)
		if err == nil {
			return verified, underPolicy(policy.check(newest), options)
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = fail(StepCheckpoint, "the policy has no log of this origin")
	}
	return nil, first
}

// ClaimedSize is the size of the checkpoint in a proof file. Nothing is verified.
func ClaimedSize(file []byte) (uint64, error) {
	parsed, err := decodeFile(file)
	if err != nil {
		return 0, under(StepFormat, err)
	}
	note, err := parseNote(parsed.log.note)
	if err != nil {
		return 0, under(StepCheckpoint, err)
	}
	checkpoint, err := note.checkpoint()
	return checkpoint.Size, under(StepCheckpoint, err)
}

// judgement is the state of a verification.
type judgement struct {
	file   *proofFile
	key    VKey
	chain  *keyChain
	newer  *newerCheckpoint
	result *Verified
	notes  *signedNote
}

// newerCheckpoint is a standing proof, or a note alone.
type newerCheckpoint struct {
	file    *proofFile
	note    []byte
	changes []KeyChange
}

// judge takes the steps of section 13 in order, and gives the newest note that is shown as well.
func judge(file []byte, key VKey, options *Options) (*Verified, *signedNote, error) {
	if options == nil {
		options = &Options{}
	}
	parsed, err := decodeFile(file)
	if err != nil {
		return nil, nil, under(StepFormat, err)
	}
	j := &judgement{file: parsed, key: key, result: &Verified{Cluster: parsed.cluster, Kind: parsed.kind}}
	if options.Newer != nil {
		if j.newer, err = readNewer(options.Newer, key, options.Known); err != nil {
			return nil, nil, under(StepStanding, err)
		}
	}
	if err := j.judgeLog(options.Known); err != nil {
		return nil, nil, err
	}
	if err := j.judgePayload(); err != nil {
		return nil, nil, err
	}
	if j.newer != nil {
		if err := j.judgeNewer(); err != nil {
			return nil, nil, under(StepStanding, err)
		}
	}
	return j.result, j.notes, nil
}

// readNewer parses a newer checkpoint, and checks its key changes, which count for the proof.
func readNewer(newer []byte, key VKey, known []KeyChange) (*newerCheckpoint, error) {
	if !isFile(newer) {
		return &newerCheckpoint{note: newer}, nil
	}
	file, err := decodeFile(newer)
	if err != nil {
		return nil, err
	}
	if file.standing == nil {
		return nil, errors.New("the newer checkpoint is no standing proof")
	}
	changes, err := decodeChanges(file.log.changes, file.cluster)
	if err != nil {
		return nil, err
	}
	if _, err := newChain(key.Key, known, changes); err != nil {
		return nil, err
	}
	return &newerCheckpoint{file: file, changes: changes}, nil
}

// judgeLog takes the steps keys, checkpoint and newest_header.
func (j *judgement) judgeLog(known []KeyChange) error {
	changes, err := decodeChanges(j.file.log.changes, j.file.cluster)
	if err != nil {
		return under(StepKeys, err)
	}
	var newer []KeyChange
	if j.newer != nil {
		newer = j.newer.changes
	}
	if j.chain, err = newChain(j.key.Key, known, newer, changes); err != nil {
		return under(StepKeys, err)
	}
	extended := j.newer != nil && j.newer.file != nil
	log, err := checkLog(j.file, j.key, j.chain, extended)
	if err != nil {
		return err
	}
	j.result.Checkpoint, j.result.SignedBy, j.result.Newest = log.checkpoint, log.signer, log.newest
	j.result.Note, j.result.NewestEntry = j.file.log.note, logEntryHash(j.file.log.newest)
	j.result.KeyChanges = slices.Clone(j.chain.changes)
	j.notes = log.note
	return nil
}

// checkedLog is a log part that holds.
type checkedLog struct {
	note       *signedNote
	checkpoint Checkpoint
	signer     VKey
	newest     *Header
}

// openNote checks that the key in force at its size has signed a note. That key is the trusted one
// or came after it; it may have come before if a checkpoint that extends this one is at hand.
func openNote(note []byte, cluster ClusterID, key VKey, chain *keyChain, extended bool) (*checkedLog, error) {
	parsed, err := parseNote(note)
	if err != nil {
		return nil, err
	}
	checkpoint, err := parsed.checkpoint()
	if err != nil {
		return nil, err
	}
	at := chain.below(checkpoint.Size)
	if at < chain.place && !extended {
		return nil, errors.New("the checkpoint is from before the trusted key: show a newer checkpoint that extends it")
	}
	signer := VKey{Name: key.Name, Key: chain.key(at)}
	if checkpoint, err = parsed.opened(signer); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(checkpoint.Origin, "/"+cluster.String()) {
		return nil, errors.New("the origin does not end in the id of the file's cluster")
	}
	return &checkedLog{note: &parsed, checkpoint: checkpoint, signer: signer}, nil
}

func checkLog(file *proofFile, key VKey, chain *keyChain, extended bool) (*checkedLog, error) {
	log, err := openNote(file.log.note, file.cluster, key, chain, extended)
	if err != nil {
		return nil, under(StepCheckpoint, err)
	}
	size, root := log.checkpoint.Size, log.checkpoint.Root
	for i, part := range file.log.changes {
		sequence := chain.changes[i].Sequence
		if err := checkInclusion(logEntryHash(part.header), sequence, size, part.path, root); err != nil {
			return nil, under(StepKeys, err)
		}
	}
	newest, err := checkHeaderPart(headerPart{header: file.log.newest, path: file.log.path}, file, log, chain)
	if err != nil {
		return nil, under(StepNewestHeader, err)
	}
	if newest.Sequence != size-1 {
		return nil, fail(StepNewestHeader, "the header is not the newest one")
	}
	log.newest = newest
	return log, nil
}

// checkHeaderPart decodes a header, and checks that the log has it at its own place.
func checkHeaderPart(part headerPart, file *proofFile, log *checkedLog, chain *keyChain) (*Header, error) {
	header, err := DecodeHeader(part.header)
	if err != nil {
		return nil, err
	}
	if header.Cluster != file.cluster {
		return nil, errors.New("the header is of another cluster")
	}
	hash := logEntryHash(part.header)
	if err := checkInclusion(hash, header.Sequence, log.checkpoint.Size, part.path, log.checkpoint.Root); err != nil {
		return nil, err
	}
	return header, chain.checkHeader(header, log.checkpoint.Origin)
}

// judgePayload takes the steps from header on, but for that of a newer checkpoint.
func (j *judgement) judgePayload() error {
	if part := j.file.standing; part != nil {
		standing, err := checkStanding(part, j.result.Checkpoint, j.result.Newest)
		j.result.Standing = standing
		return under(StepStanding, err)
	}
	log := &checkedLog{checkpoint: j.result.Checkpoint}
	header, err := checkHeaderPart(j.file.header, j.file, log, j.chain)
	if err != nil {
		return under(StepHeader, err)
	}
	j.result.Header, j.result.Entry = header, logEntryHash(j.file.header.header)
	if j.file.kind == FileInterval {
		j.result.Interval, err = j.checkInterval(log, header)
		return under(StepAnchors, err)
	}
	ofGenesis := header.Kind == KindGenesis && (j.file.kind == FileQuery || j.file.kind == FileTime)
	if header.Kind != KindCommit && !ofGenesis {
		return fail(StepHeader, "the header is none of a version that the proof can be of")
	}
	var next *Header
	if j.file.kind == FileTime {
		if next, err = j.checkNextHeader(log); err != nil {
			return under(StepHeader, err)
		}
	}
	j.result.Next = j.file.epoch.next
	if err := j.file.epoch.check(header.Stamp(), j.result.Newest); err != nil {
		return under(StepEpoch, err)
	}
	switch j.file.kind {
	case FileReceipt:
		j.result.Receipt, err = j.file.entry.receipt(header)
	case FileJournals:
		j.result.Journals, err = j.file.checkJournals(header)
	case FileTime:
		j.result.Time, err = j.file.time.check(header, next, j.result.Newest, &j.file.epoch)
		err = under(StepTime, err)
	default:
		err = j.judgeQuery(header)
	}
	return err
}

func (j *judgement) judgeQuery(header *Header) error {
	if err := j.file.query.checkState(header); err != nil {
		return err
	}
	query, err := j.file.query.answer()
	if err != nil {
		return err
	}
	if j.file.kind == FileQuery {
		j.result.Query = query
		return nil
	}
	j.result.Lineage, err = j.file.checkLineage(header, query)
	return err
}

// check takes the step epoch.
func (e *epochPart) check(stamp Stamp, newest *Header) error {
	pairs, index := uint64(newest.EpochPairs), uint64(e.index)
	shown := []shownLeaf{{index: index, hash: epochLeafHash(e.pair)}}
	if e.next != nil {
		shown = append(shown, shownLeaf{index: index + 1, hash: epochLeafHash(*e.next)})
	}
	root, err := listRoot(pairs, shown, e.hashes)
	switch {
	case err != nil:
		return err
	case root != newest.EpochsRoot:
		return errors.New("the pairs do not lead to the epochs root")
	case e.pair.Epoch != stamp.Epoch:
		return errors.New("the pair is of another epoch than the version")
	case e.next == nil && index != pairs-1:
		return errors.New("the next pair is missing")
	}
	if err := checkPairAt(e.pair, index, newest); err != nil {
		return err
	}
	if e.next != nil {
		if err := checkPairAt(*e.next, index+1, newest); err != nil {
			return err
		}
		if err := checkNeighbours(e.pair, *e.next, index); err != nil {
			return err
		}
	}
	if !e.pair.stands(stamp, e.next) || stamp.Version > newest.Version {
		return errors.New("the version does not stand")
	}
	return nil
}

// check takes the step journal: the entry is one of the header's journal.
func (p *entryPart) check(header *Header) (*Entry, error) {
	shown := []shownLeaf{{index: uint64(p.index), hash: JournalLeafHash(p.entry)}}
	root, err := listRoot(uint64(header.JournalLeaves), shown, p.hashes)
	if err != nil {
		return nil, under(StepJournal, err)
	}
	if root != header.JournalRoot {
		return nil, fail(StepJournal, "the entry does not lead to the journal root")
	}
	entry, err := DecodeEntry(p.entry)
	return entry, under(StepJournal, err)
}

func (p *entryPart) receipt(header *Header) (*Receipt, error) {
	entry, err := p.check(header)
	if err != nil {
		return nil, err
	}
	if entry.Kind != EntryBatch {
		return nil, fail(StepJournal, "the entry is no batch")
	}
	return &Receipt{Index: p.index, Batch: entry, Hash: JournalLeafHash(p.entry)}, nil
}

func checkStanding(part *standingPart, checkpoint Checkpoint, newest *Header) (*Standing, error) {
	if err := checkConsistency(part.oldSize, part.oldRoot, checkpoint.Size, checkpoint.Root, part.path); err != nil {
		return nil, err
	}
	if err := checkPairs(part.pairs, newest); err != nil {
		return nil, err
	}
	return &Standing{OldSize: part.oldSize, OldRoot: part.oldRoot, Pairs: part.pairs}, nil
}

// judgeNewer takes the step standing for a newer checkpoint.
func (j *judgement) judgeNewer() error {
	if j.newer.file == nil {
		log, err := openNote(j.newer.note, j.file.cluster, j.key, j.chain, false)
		if err != nil {
			return err
		}
		j.result.Newer, j.result.NewerNote, j.notes = &log.checkpoint, j.newer.note, log.note
		if log.checkpoint != j.result.Checkpoint {
			return errors.New("a note alone is a checkpoint of the same size and root")
		}
		return nil
	}
	file := j.newer.file
	// Both origins are the key's name, and each ends in its file's cluster, so the clusters are the
	// same.
	log, err := checkLog(file, j.key, j.chain, false)
	if err != nil {
		return err
	}
	standing, err := checkStanding(file.standing, log.checkpoint, log.newest)
	if err != nil {
		return err
	}
	old := j.result.Checkpoint
	switch {
	case log.checkpoint.Size < old.Size:
		return errors.New("the newer checkpoint is smaller")
	case log.checkpoint.Size == old.Size:
		if log.checkpoint.Root != old.Root {
			return errors.New("two checkpoints of one size have other roots: the log was forked")
		}
	case standing.OldSize != old.Size || standing.OldRoot != old.Root:
		return errors.New("the newer checkpoint does not extend that of the proof")
	}
	// An entry of the log stays, whether or not its version stands.
	if header := j.result.Header; header != nil && j.result.Interval == nil {
		if !standsBy(header.Stamp(), standing.Pairs) || header.Version > log.newest.Version {
			return errors.New("the version does not stand any more")
		}
	}
	if answer := j.result.Time; answer != nil && !answer.Final && log.checkpoint.Size > old.Size {
		return errors.New("a version behind the proof's checkpoint may have the time, too")
	}
	j.result.Newer, j.result.NewerNote, j.notes = &log.checkpoint, file.log.note, log.note
	return nil
}

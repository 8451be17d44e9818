package verify

import "errors"

// anchorsMax bounds the anchors on either side of an entry.
const anchorsMax = 16

// Interval is the claim of an interval proof: the log of the checkpoint has these anchors around
// the entry that is the header. Their tokens are not judged here.
type Interval struct {
	// Below are anchors before the entry, in the order of the log: what they stamp is older than it.
	Below []ProvenAnchor
	// Above are anchors that stamp a log with the entry, in the order of the log.
	Above []ProvenAnchor
}

// ProvenAnchor is an anchor with stamps that the log has.
type ProvenAnchor struct {
	// Header is the anchor's header. Its Anchor has the stamps.
	Header *Header
	// Imprint is the hash that each of its tokens is to have.
	Imprint Digest
}

type intervalPart struct {
	below []headerPart
	above []stampingPart
}

// stampingPart is an anchor with the path of the entry in the stamped log.
type stampingPart struct {
	headerPart
	entry hashList
}

func decodeInterval(r *reader) *intervalPart {
	part := &intervalPart{}
	for range anchorCount(r) {
		part.below = append(part.below, decodeHeaderPart(r))
		if r.err != nil {
			return part
		}
	}
	for range anchorCount(r) {
		part.above = append(part.above, stampingPart{headerPart: decodeHeaderPart(r), entry: r.hashes()})
		if r.err != nil {
			return part
		}
	}
	return part
}

func anchorCount(r *reader) int {
	n := r.count16(4)
	if n > anchorsMax {
		r.fail("there are more than 16 anchors on one side")
		return 0
	}
	return n
}

// checkInterval takes the step anchors.
func (j *judgement) checkInterval(log *checkedLog, header *Header) (*Interval, error) {
	part, claim := j.file.interval, &Interval{}
	for _, below := range part.below {
		anchor, err := j.checkAnchor(log, below)
		if err != nil {
			return nil, err
		}
		if anchor.Header.Sequence >= header.Sequence {
			return nil, errors.New("an anchor does not come before the entry")
		}
		claim.Below = append(claim.Below, anchor)
	}
	entry := logEntryHash(j.file.header.header)
	for _, above := range part.above {
		anchor, err := j.checkAnchor(log, above.headerPart)
		if err != nil {
			return nil, err
		}
		stamps := anchor.Header.Anchor.Stamps
		if stamps.Size <= header.Sequence {
			return nil, errors.New("an anchor stamps a log without the entry")
		}
		if err := checkInclusion(entry, header.Sequence, stamps.Size, above.entry, stamps.Root); err != nil {
			return nil, err
		}
		claim.Above = append(claim.Above, anchor)
	}
	return claim, claim.checkOrder()
}

// checkAnchor gives an anchor with stamps that the log has.
func (j *judgement) checkAnchor(log *checkedLog, part headerPart) (ProvenAnchor, error) {
	header, err := checkHeaderPart(part, j.file, log, j.chain)
	if err != nil {
		return ProvenAnchor{}, err
	}
	if header.Anchor == nil || header.Anchor.Stamps == nil {
		return ProvenAnchor{}, errors.New("a header that is no anchor with stamps")
	}
	return ProvenAnchor{Header: header, Imprint: header.Anchor.Stamps.Imprint(log.checkpoint.Origin)}, nil
}

// checkOrder holds that sequences and stamped sizes ascend, through both lists.
func (i *Interval) checkOrder() error {
	var last *Header
	for _, side := range [][]ProvenAnchor{i.Below, i.Above} {
		for _, anchor := range side {
			next := anchor.Header
			if last != nil && (next.Sequence <= last.Sequence || next.Anchor.Stamps.Size <= last.Anchor.Stamps.Size) {
				return errors.New("the anchors are out of order")
			}
			last = next
		}
	}
	return nil
}

package verify

import "errors"

// VersionTime is the claim of a proof of a time: the header's version is the newest one that is not
// later than TimeMS. Times are in ms since 1970.
type VersionTime struct {
	TimeMS uint64
	// Next is the version after it, nil if the version is head. It is later than TimeMS.
	Next *Header
	// Final says that no later commit can change the answer: a header of the log is later than
	// TimeMS.
	Final bool
}

type timePart struct {
	time uint64
	// next is nil if the version is head.
	next *headerPart
}

func decodeTime(r *reader) *timePart {
	part := &timePart{time: r.u64()}
	if r.flag() {
		next := decodeHeaderPart(r)
		part.next = &next
	}
	return part
}

// checkNextHeader takes the step header for the version after that of the proof.
func (j *judgement) checkNextHeader(log *checkedLog) (*Header, error) {
	if j.file.time.next == nil {
		return nil, nil
	}
	next, err := checkHeaderPart(*j.file.time.next, j.file, log, j.chain)
	if err != nil {
		return nil, err
	}
	if next.Kind != KindCommit {
		return nil, errors.New("the next header is no commit")
	}
	return next, nil
}

// check takes the step time.
func (p *timePart) check(header, next, newest *Header, epoch *epochPart) (*VersionTime, error) {
	last := header
	if header.TimestampMS > p.time {
		return nil, errors.New("the version is later than the time")
	}
	if next == nil {
		if header.Version != newest.Version {
			return nil, errors.New("the next version is not shown")
		}
	} else {
		last = next
		if err := checkNeighbour(header, next, epoch); err != nil {
			return nil, err
		}
		if next.Version > newest.Version {
			return nil, errors.New("the next version is above the newest header's")
		}
		if next.TimestampMS <= p.time {
			return nil, errors.New("the next version is not later than the time")
		}
	}
	if last.TimestampMS > newest.TimestampMS {
		return nil, errors.New("times decrease along the log")
	}
	return &VersionTime{TimeMS: p.time, Next: next, Final: newest.TimestampMS > p.time}, nil
}

// checkNeighbour checks that next is the version after one that stands, and stands itself.
func checkNeighbour(header, next *Header, part *epochPart) error {
	epoch := part.pair.Epoch
	if part.next != nil && part.next.Base == header.Version {
		epoch = part.next.Epoch
	}
	switch {
	case next.Version == 0 || next.Version-1 != header.Version:
		return errors.New("the next version is not the one after it")
	case next.Epoch != epoch:
		return errors.New("the next version was rolled back")
	case next.Sequence <= header.Sequence:
		return errors.New("the next version lies before it in the log")
	}
	return nil
}

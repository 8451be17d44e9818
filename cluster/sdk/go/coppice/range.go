package coppice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"iter"
	"slices"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// pageRecords and pageBytes bound what a scan holds in memory at one time.
const (
	pageRecords = 512
	pageBytes   = 128 << 20
)

// Span says which records a scan gives, and in which order.
type Span struct {
	// Low is the smallest key.
	Low []byte
	// High is above all keys; nil is the end of the key space.
	High []byte
	// Reverse begins with the largest key.
	Reverse bool
	// Limit is the number of records after which the scan ends; 0 is no limit.
	Limit int
}

// Range gives the records with low <= key < high in ascending order, all of one version. It is a
// Scan without a limit.
func (c *Client) Range(ctx context.Context, low, high []byte, read *Read) iter.Seq2[Record, error] {
	return c.Scan(ctx, Span{Low: low, High: high}, read)
}

// Scan gives the records of a span, all of one version. Records come in pages, and each page is
// proven to be complete before its first record is given. The sequence ends with an error, if there
// is one.
func (c *Client) Scan(ctx context.Context, span Span, read *Read) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		place := Read{}
		if settled, err := c.settled(ctx, "Range", read); err != nil {
			yield(Record{}, err)
			return
		} else if settled != nil {
			place = *settled
		}
		place.Unproven = false
		left := span.Limit
		for {
			limit := pageRecords
			if span.Limit > 0 {
				limit = min(limit, left)
			}
			page, err := c.page(ctx, span, limit, &place, withValues)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, record := range page.records {
				if !yield(record, nil) {
					return
				}
			}
			left -= len(page.records)
			if !page.more || span.Limit > 0 && left <= 0 {
				return
			}
			span = span.behind(page.records)
			place.At, place.AnyEpoch, place.AtTime = &page.readAt, false, time.Time{}
		}
	}
}

// behind is the part of a span that follows a page.
func (s Span) behind(records []Record) Span {
	if s.Reverse {
		s.High = last(records)
	} else {
		s.Low = successor(last(records))
	}
	return s
}

// upTo is the part of a span that ends with the last record of a page. A limit cut that page short,
// and its proof is of this part. It tells whether anything of the span lies behind.
func (s Span) upTo(records []Record) (part Span, follows bool) {
	if s.Reverse {
		s.Low, follows = last(records), !bytes.Equal(last(records), s.Low)
		return s, follows
	}
	next := successor(last(records))
	follows = s.High == nil || !bytes.Equal(next, s.High)
	s.High = next
	return s, follows
}

func (s *Span) holds(key []byte) bool {
	return bytes.Compare(key, s.Low) >= 0 && (s.High == nil || bytes.Compare(key, s.High) < 0)
}

func last(records []Record) []byte { return records[len(records)-1].Key }

// successor is the smallest key above another.
func successor(key []byte) []byte { return append(slices.Clone(key), 0) }

type page struct {
	records []Record
	readAt  Stamp
	more    bool
	proof   []byte
	parts   parts
}

// parts says what a page has of its records.
type parts bool

const (
	withValues parts = false
	// keysAlone shows the reserved keys, too, to those who may see them.
	keysAlone parts = true
)

func (c *Client) page(ctx context.Context, span Span, limit int, read *Read, parts parts) (*page, error) {
	k := c.known()
	request := &v1.RangeRequest{
		Low: span.Low, High: span.High, Reverse: span.Reverse, Limit: uint32(limit),
		Read: c.readOptions(read), WithoutValues: bool(parts),
	}
	p := &page{parts: parts}
	ended, size := false, 0
	take := func(message *v1.RangeResponse) error {
		if ended || len(message.Records) == 0 && message.End == nil {
			return errors.New("a range that neither goes on nor ends")
		}
		for _, record := range message.Records {
			size += len(record.GetKey()) + len(record.GetValue())
			if !record.GetFound() || len(p.records) == limit || size > pageBytes {
				return errors.New("more records than were asked for, or one that is not there")
			}
			if err := p.add(span, recordOf(record)); err != nil {
				return err
			}
		}
		if message.End != nil {
			ended, p.readAt, p.more, p.proof = true, stampOf(
				message.End.ReadAt,
			), message.End.More, message.End.Proof
		}
		return nil
	}
	err := collect(ctx, c, "Range", request, v1.LedgerClient.Range, take)
	if err != nil {
		return nil, err
	}
	if !ended || p.more && len(p.records) != limit {
		return nil, distrust("Range", "the range breaks off")
	}
	if c.trust != nil {
		if err := c.checkPage(ctx, k, span, read, p); err != nil {
			return nil, distrusted("Range", err)
		}
	}
	return p, nil
}

// add takes a record that follows the ones before, in the order of the span.
func (p *page) add(span Span, record *Record) error {
	if !span.holds(record.Key) {
		return errors.New("a key outside of what was asked for")
	}
	if len(p.records) > 0 {
		order := bytes.Compare(record.Key, last(p.records))
		if order == 0 || (order < 0) != span.Reverse {
			return errors.New("keys that are out of order")
		}
	}
	p.records = append(p.records, *record)
	return nil
}

// checkPage compares a page with its proof.
func (c *Client) checkPage(ctx context.Context, k known, span Span, read *Read, p *page) error {
	v, err := c.verifyProof(ctx, k, p.proof)
	if err != nil {
		return err
	}
	if p.more {
		part, follows := span.upTo(p.records)
		if !follows {
			return errors.New("nothing can follow, and the answer says that something does")
		}
		span = part
	}
	subject := verify.AboutRange{Low: span.Low, High: span.High}
	if err := v.Answers(verify.Question{Subject: subject}); err != nil {
		return err
	}
	if err := checkPlace(v, k, read, p.readAt); err != nil {
		return err
	}
	if len(v.Query.Records) != len(p.records) {
		return errors.New("the answer is not the proven range")
	}
	for i := range p.records {
		at := i
		if span.Reverse {
			at = len(p.records) - 1 - i
		}
		record, shown := &v.Query.Records[at], &p.records[i]
		if !bytes.Equal(record.Key, shown.Key) || record.Stamp != shown.LastChanged ||
			p.parts == withValues && sha256.Sum256(shown.Value) != record.Hash {
			return errors.New("the answer and its proof disagree")
		}
	}
	return c.follow(ctx, v, p.proof)
}

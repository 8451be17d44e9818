package coppice

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Watch says which headers to watch.
type Watch struct {
	// From is the sequence of the first header.
	From uint64
	// Follow waits for new headers, without end.
	Follow bool
	// ChangedKeys asks for the keys that each commit changed, and ChangedValues for their values too.
	ChangedKeys, ChangedValues bool
	// Journal asks for the journal of each commit, which verify.Written checks. It shows all that the
	// commit wrote, but for the values. A ledger that keeps no journals shows those of its newest
	// versions, and only where its leader is followed.
	Journal bool
}

// Headed is one header of the root log.
type Headed struct {
	// Encoded has its canonical bytes.
	Encoded []byte
	Header  *verify.Header
	// Changes are the records that a commit changed, by ascending keys, if they were asked for. They
	// are the coordinator's word. Of a deleted key, Deleted is set.
	Changes []Changed
	// RolledBack tells that changes or a journal were asked for, of a commit that was rolled back.
	RolledBack bool
	// Journal is that of a commit, if it was asked for: nil if the commit was rolled back. ListsGone
	// tells that it has no operation lists, since the ledger no longer knows them.
	Journal   *verify.VersionJournal
	ListsGone bool
}

// Changed is a record that a commit changed.
type Changed struct {
	Record
	Deleted bool
}

// WatchHeads gives the headers of the root log in order. Each follows the one before it by the
// rules of the log and by its hash, but that they are under a checkpoint is not shown: see
// verify.HeaderLog for a whole log. If the stream breaks, it goes on with another coordinator.
func (c *Client) WatchHeads(ctx context.Context, watch Watch) iter.Seq2[Headed, error] {
	return func(yield func(Headed, error) bool) {
		w := &watcher{next: watch.From}
		until := time.Now().Add(c.patience)
		for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
			request := &v1.WatchHeadsRequest{
				FromSequence: w.next, Follow: watch.Follow,
				WantChangedKeys: watch.ChangedKeys, WantChangedValues: watch.ChangedValues,
				WantJournal: watch.Journal,
			}
			w.part = Headed{}
			var failed error
			for message, err := range messages(ctx, c, "WatchHeads", request, v1.LedgerClient.WatchHeads, !watch.Follow) {
				if err != nil {
					failed = err
					break
				}
				whole, err := w.take(message)
				if err != nil {
					yield(Headed{}, distrust("WatchHeads", err.Error()))
					return
				}
				if whole == nil {
					continue
				}
				// A stream that goes on is given all of its patience again.
				until, pause = time.Now().Add(c.patience), pauseMin
				if !yield(*whole, nil) {
					return
				}
			}
			if failed == nil && !watch.Follow {
				return
			}
			if failed == nil {
				failed = streamError(ctx, "WatchHeads", errEnded)
			}
			if !mayResume(failed) || time.Now().Add(pause).After(until) || sleep(ctx, spread(pause)) != nil {
				yield(Headed{}, failed)
				return
			}
		}
	}
}

// mayResume tells whether another coordinator may go on with a stream.
func mayResume(err error) bool {
	var failed *Error
	if !errors.As(err, &failed) || failed.cause != nil {
		return false
	}
	if failed.Reason != "" {
		return kinds[failed.Reason] == kindUnavailable
	}
	return true
}

// watcher joins the messages of a stream to headers.
type watcher struct {
	next   uint64
	before *verify.Header
	hash   verify.Digest
	part   Headed
	last   []byte
	// size is the memory that changes and journal of the part take.
	size int
	// shard is the one whose operation lists came last.
	shard *uint32
}

// take gives a header when its last message has come.
func (w *watcher) take(message *v1.WatchHeadsResponse) (*Headed, error) {
	if w.part.Header == nil {
		header, err := verify.DecodeHeader(message.Header)
		if err != nil {
			return nil, err
		}
		if header.Sequence != w.next {
			return nil, errors.New("headers that leave one out or repeat one")
		}
		if w.before != nil {
			if err := header.Follows(w.before, w.hash); err != nil {
				return nil, err
			}
		}
		w.part = Headed{Encoded: message.Header, Header: header}
		w.last, w.size, w.shard = nil, 0, nil
	} else if !bytes.Equal(message.Header, w.part.Encoded) {
		return nil, errors.New("a header in the middle of another")
	}
	if message.Journal != nil {
		if err := w.takeJournal(message.Journal); err != nil {
			return nil, err
		}
	}
	if message.Continued && len(message.Changes) == 0 && message.Journal == nil {
		return nil, errors.New("a part without changes or journal")
	}
	for _, change := range message.Changes {
		if w.last != nil && bytes.Compare(change.GetKey(), w.last) <= 0 {
			return nil, errors.New("keys that do not ascend")
		}
		w.last = change.GetKey()
		if w.size += partBytes + len(w.last) + len(change.GetValue()); w.size > versionBytesMax {
			return nil, errors.New("a version has more changes than any that a ledger commits")
		}
		record := Record{Key: change.GetKey(), Value: change.GetValue(), LastChanged: stampOf(change.GetLastChanged())}
		w.part.Changes = append(w.part.Changes, Changed{Record: record, Deleted: !change.GetFound()})
	}
	w.part.RolledBack, w.part.ListsGone = message.RolledBack, message.ListsGone
	if message.RolledBack {
		w.part.Journal, w.part.Changes = nil, nil
	}
	if message.Continued {
		return nil, nil
	}
	whole := w.part
	w.part = Headed{}
	w.before, w.hash, w.next = whole.Header, verify.EntryHash(whole.Encoded), whole.Header.Sequence+1
	return &whole, nil
}

// takeJournal takes a part of a journal: all entries, or the operation lists of the next shard.
func (w *watcher) takeJournal(part *v1.WatchedJournal) error {
	w.size += partBytes
	for _, encoded := range [][][]byte{part.Entries, part.Lists} {
		for _, one := range encoded {
			w.size += partBytes + len(one)
		}
	}
	journal := w.part.Journal
	switch {
	case w.size > versionBytesMax:
		return errors.New("a version has a longer journal than any that a ledger commits")
	case w.part.Changes != nil:
		return errors.New("a journal behind the changes")
	case journal == nil && (len(part.Entries) == 0 || len(part.Lists) > 0):
		return errors.New("a journal that does not begin with its entries")
	case journal == nil:
		w.part.Journal = &verify.VersionJournal{Entries: part.Entries, Lists: make(map[uint32][][]byte)}
		return nil
	case len(part.Entries) > 0 || len(part.Lists) == 0 || w.shard != nil && part.Shard <= *w.shard:
		return errors.New("the operation lists of shards out of order")
	}
	journal.Lists[part.Shard], w.shard = part.Lists, &part.Shard
	return nil
}

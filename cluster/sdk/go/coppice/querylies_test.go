package coppice

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// queryScene is a ledger of nine versions in two shards, with a relay before it.
type queryScene struct {
	*relay
	ledger *ledger
	ctx    context.Context
	client *Client
	times  []time.Time
	// queries are of all kinds: 9 keys, of which 3 are walked through.
	queries []Query
	known   *replied
}

type queryMessages = []*v1.QueryBatchResponse

func setQueryScene(t *testing.T) *queryScene {
	l := startLedger(t, t.TempDir(), "--split", "m", "--replicas", "1")
	s := &queryScene{relay: startRelay(t, l, insecure.NewCredentials()), ledger: l, ctx: limited(t)}
	s.client = s.relay.client(t, l)
	var at time.Time
	for i, batch := range []*Batch{
		put("a", "one"), put("x", "two"), put("a", "three"), new(Batch).Delete([]byte("a")), put("b", "five"),
		put("a", "six"), put("x", "seven"), new(Batch).Delete([]byte("x")), put("b", "nine"),
	} {
		var stamp Stamp
		stamp, at = commitLater(t, s.client, batch, at)
		if stamp.Version != uint64(i+1) {
			t.Fatalf("%v", stamp)
		}
		s.times = append(s.times, at)
	}
	keys := func(keys ...string) (all [][]byte) {
		for _, key := range keys {
			all = append(all, []byte(key))
		}
		return all
	}
	s.queries = []Query{
		{Keys: keys("a"), At: AtVersion(3)},
		{Keys: keys("b", "nothing")},
		{Keys: keys("x"), At: AtTime(s.times[6])},
		{Keys: keys("a"), At: AtVersion(9), Since: AtVersion(2)},
		{Keys: keys("x", "b"), At: AtTime(s.times[7]), Since: AtTime(s.times[2])},
		{Keys: keys("a"), At: AtVersion(12)},
		{Keys: keys("b"), At: AtVersion(1)},
	}
	s.known = must(askQueries(s.ctx, s.client, s.queries))(t)
	if len(s.known.answers) != 9 {
		t.Fatalf("%d keys have answers", len(s.known.answers))
	}
	return s
}

// heldTo checks that what is told about each key is the beginning of what is known.
func (s *queryScene) heldTo(t testing.TB, what string, told *replied, proven bool) {
	t.Helper()
	for at, answers := range told.answers {
		known := s.known.answers[at]
		if len(answers) > len(known) {
			t.Errorf("%s: %d answers about %v, of %d", what, len(answers), at, len(known))
			continue
		}
		for i := range answers {
			// A coordinator may refuse any key.
			if answers[i].Err == nil && proven && !reflect.DeepEqual(answers[i], known[i]) {
				t.Errorf("%s: %+v, which is %+v", what, answers[i], known[i])
			}
		}
	}
}

// ofVersion is the message with the records of a version.
func ofVersion(all queryMessages, version uint64) *v1.QueryBatchResponse {
	return all[slices.IndexFunc(all, func(m *v1.QueryBatchResponse) bool { return m.ReadAt.GetVersion() == version })]
}

// ofTimes is the first message with times.
func ofTimes(all queryMessages) *v1.QueryBatchResponse {
	return all[slices.IndexFunc(all, func(m *v1.QueryBatchResponse) bool { return len(m.Times) > 0 })]
}

func swap[T any](list []T, i, j int) { list[i], list[j] = list[j], list[i] }

// queryLie changes the messages of a reply.
type queryLie func(all queryMessages) queryMessages

// to is a lie that changes the records of a version.
func to(version uint64, change func(*v1.QueryBatchResponse)) queryLie {
	return func(all queryMessages) queryMessages {
		change(ofVersion(all, version))
		return all
	}
}

// withoutVersion leaves out the records of a version.
func withoutVersion(version uint64) queryLie {
	return func(all queryMessages) queryMessages {
		gone := ofVersion(all, version)
		return slices.DeleteFunc(all, func(m *v1.QueryBatchResponse) bool { return m == gone })
	}
}

// shapeless are lies that a client without a key refuses, too: replies that fit no such batch.
func shapeless() map[string]queryLie {
	return map[string]queryLie{
		"an answer that is missing":      withoutVersion(1),
		"a walk that skips a version":    withoutVersion(5),
		"no answer":                      func(queryMessages) queryMessages { return nil },
		"another version than asked for": to(3, func(m *v1.QueryBatchResponse) { m.ReadAt.Version = 4 }),
		"no version":                     to(3, func(m *v1.QueryBatchResponse) { m.ReadAt = nil }),
		"a key that was not asked for":   to(3, func(m *v1.QueryBatchResponse) { m.Places[0] = 99 }),
		"the largest number of a key":    to(3, func(m *v1.QueryBatchResponse) { m.Places[0] = math.MaxUint32 }),
		"a record of another key":        to(3, func(m *v1.QueryBatchResponse) { m.Records[0].Key = []byte("b") }),
		"records in another order":       to(9, func(m *v1.QueryBatchResponse) { swap(m.Records, 0, 1) }),
		"places in another order":        to(9, func(m *v1.QueryBatchResponse) { swap(m.Places, 0, 1) }),
		"fewer records than places":      to(9, func(m *v1.QueryBatchResponse) { m.Records = m.Records[1:] }),
		"fewer places than records":      to(9, func(m *v1.QueryBatchResponse) { m.Places = m.Places[1:] }),
		"no places":                      to(9, func(m *v1.QueryBatchResponse) { m.Places = nil }),
		"no records":                     to(9, func(m *v1.QueryBatchResponse) { m.Records = nil }),
		"fewer states than records":      to(9, func(m *v1.QueryBatchResponse) { m.UnchangedSince = m.UnchangedSince[1:] }),
		"a later version of an absence": to(9, func(m *v1.QueryBatchResponse) {
			m.UnchangedSince[slices.Index(m.Places, 2)] = 10
		}),
		"an earlier version of a change": to(3, func(m *v1.QueryBatchResponse) { m.UnchangedSince[0] = 2 }),
		"a failure with records":         to(3, func(m *v1.QueryBatchResponse) { m.Failure = &v1.QueryFailure{} }),
		"records with times":             to(3, func(m *v1.QueryBatchResponse) { m.Times = []*v1.QueryTime{{}} }),
		"the answer to another query about the key": to(9, func(m *v1.QueryBatchResponse) {
			m.Places[slices.Index(m.Places, 1)] = 6
		}),
		"one key twice in a part": to(3, func(m *v1.QueryBatchResponse) {
			m.Places, m.Records = append(m.Places, m.Places...), append(m.Records, m.Records...)
			m.UnchangedSince = append(m.UnchangedSince, m.UnchangedSince...)
		}),
		"one answer twice": func(all queryMessages) queryMessages {
			again := proto.Clone(ofVersion(all, 3)).(*v1.QueryBatchResponse)
			again.Log = nil
			return append(all, again)
		},
		"a failure about no key": func(all queryMessages) queryMessages {
			return append(all, &v1.QueryBatchResponse{Failure: &v1.QueryFailure{}})
		},
		"a failure behind the last answer": func(all queryMessages) queryMessages {
			return append(all, &v1.QueryBatchResponse{Places: []uint32{0}, Failure: &v1.QueryFailure{}})
		},
		"nothing": func(all queryMessages) queryMessages {
			return slices.Insert(all, 1, &v1.QueryBatchResponse{})
		},
		"records before the versions of their times": func(all queryMessages) queryMessages {
			log := all[0].Log
			all[0].Log = nil
			slices.SortStableFunc(all, func(a, b *v1.QueryBatchResponse) int { return len(a.Times) - len(b.Times) })
			first := ofVersion(all, 8)
			first.Log = log
			return slices.Insert(all, 0, first)
		},
		"a time that is not settled": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].Version.IsFinal = false
			return all
		},
		"a time without a version": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].Version = nil
			return all
		},
		"a time without a stamp": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].Version.Stamp = nil
			return all
		},
		"a version that is later than its time": func(all queryMessages) queryMessages {
			told := ofTimes(all).Times[0]
			told.Version.TimestampMs = told.TimeMs + 1
			return all
		},
		"a time that was not asked for": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].TimeMs++
			return all
		},
		"times again and again": func(all queryMessages) queryMessages {
			again := proto.Clone(ofTimes(all)).(*v1.QueryBatchResponse)
			again.Log = nil
			return slices.Insert(all, 1, again, again, again)
		},
	}
}

// unproven are lies that only proofs uncover.
func (s *queryScene) unproven(t *testing.T) map[string]queryLie {
	ask := func(queries ...*v1.Query) queryMessages {
		return must(s.queriesOf(queries...))(t)
	}
	a := func(version uint64) *v1.Query {
		return &v1.Query{Keys: [][]byte{[]byte("a")}, At: AtVersion(version).message()}
	}
	older := ask(a(1))[0]
	longer := ofVersion(ask(&v1.Query{Keys: [][]byte{[]byte("a")}, Since: AtVersion(0).message()}), 5)
	older.Log, longer.Log = nil, nil
	earlier := ask(&v1.Query{Keys: [][]byte{[]byte("a")}, At: AtTime(s.times[5]).message()})[0].Times[0]
	foreign := foreignQueries(t, a(0))
	return map[string]queryLie{
		"another value":                   to(3, func(m *v1.QueryBatchResponse) { m.Records[0].Value = []byte("no") }),
		"a key that is said to be absent": to(3, func(m *v1.QueryBatchResponse) { m.Records[0].Found = false }),
		"a key that is said to be there": to(1, func(m *v1.QueryBatchResponse) {
			m.Records[0].Found, m.Records[0].LastChanged = true, &v1.Stamp{Version: m.UnchangedSince[0]}
		}),
		"another stamp of a change": to(3, func(m *v1.QueryBatchResponse) {
			m.Records[0].LastChanged.Version, m.UnchangedSince[0] = 1, 1
		}),
		"a change that is withheld": to(9, func(m *v1.QueryBatchResponse) {
			walk := slices.Index(m.Places, 4)
			m.UnchangedSince[walk], m.Records[walk].LastChanged.Version = 2, 2
		}),
		"an absence that lasts longer": to(5, func(m *v1.QueryBatchResponse) { m.UnchangedSince[0]-- }),
		"another epoch":                to(3, func(m *v1.QueryBatchResponse) { m.ReadAt.Epoch++ }),
		"no proof":                     to(3, func(m *v1.QueryBatchResponse) { m.Proof = nil }),
		"a damaged proof":              to(3, func(m *v1.QueryBatchResponse) { m.Proof[len(m.Proof)/2] ^= 1 }),
		"the proof of another part":    to(3, func(m *v1.QueryBatchResponse) { m.Proof = longer.Proof }),
		"the proof of a time":          to(3, func(m *v1.QueryBatchResponse) { m.Proof = earlier.Version.Proof }),
		"an older state in the place of a newer one": to(3, func(m *v1.QueryBatchResponse) {
			proto.Reset(m)
			proto.Merge(m, older)
		}),
		"an older state as if it were newer": to(3, func(m *v1.QueryBatchResponse) {
			proto.Reset(m)
			proto.Merge(m, older)
			m.ReadAt.Version = 3
		}),
		"no log part": func(all queryMessages) queryMessages {
			all[0].Log = nil
			return all
		},
		"a second log part": func(all queryMessages) queryMessages {
			all[1].Log = all[0].Log
			return all
		},
		"a log part that comes too late": func(all queryMessages) queryMessages {
			all[1].Log, all[0].Log = all[0].Log, nil
			return all
		},
		"the log part of another ledger": func(all queryMessages) queryMessages {
			all[0].Log = foreign[0].Log
			return all
		},
		"another version for a time": func(all queryMessages) queryMessages {
			told := ofTimes(all).Times[0]
			told.Version = proto.Clone(earlier.Version).(*v1.TimeResponse)
			return all
		},
		"another stamp for a time": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].Version.Stamp.Version--
			return all
		},
		"a time that is said to be later": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].Version.TimestampMs--
			return all
		},
		"a time without a proof": func(all queryMessages) queryMessages {
			ofTimes(all).Times[0].Version.Proof = nil
			return all
		},
	}
}

// queriesOf asks the ledger itself, with proofs.
func (s *queryScene) queriesOf(queries ...*v1.Query) (queryMessages, error) {
	return s.queriesWith(&v1.QueryBatchRequest{Queries: queries, WantProof: true})
}

func (s *queryScene) queriesWith(request *v1.QueryBatchRequest) (queryMessages, error) {
	return s.relay.queries(s.ctx, request)
}

// foreignQueries asks another ledger.
func foreignQueries(t *testing.T, queries ...*v1.Query) queryMessages {
	other, ctx := sharedLedger(t), limited(t)
	must(other.client(t).Commit(ctx, put("other", "1")))(t)
	elsewhere := &queryScene{relay: startRelay(t, other, insecure.NewCredentials()), ctx: ctx}
	return must(elsewhere.queriesOf(queries...))(t)
}

func TestNoLieAboutABatchIsBelievedAndWhatCameBeforeItHolds(t *testing.T) {
	s := setQueryScene(t)
	believing := connect(t, Options{Endpoints: []string{s.endpoint}, Unverified: true})
	try := func(what string, client *Client, lie queryLie) {
		changed := false
		s.onQueries = func(all queryMessages) (queryMessages, error) {
			before := fmt.Sprint(all)
			all = lie(all)
			changed = fmt.Sprint(all) != before
			return all, nil
		}
		told, err := askQueries(s.ctx, client, s.queries)
		if !errors.Is(err, ErrUntrusted) || OutcomeUnknown(err) || !changed {
			t.Errorf("%s (changed: %v): %v", what, changed, err)
		}
		s.heldTo(t, what, told, client == s.client)
	}
	for what, lie := range shapeless() {
		try(what, s.client, lie)
		try(what+", without a key", believing, lie)
	}
	for what, lie := range s.unproven(t) {
		try(what, s.client, lie)
	}
	// The truth is still believed, by the same clients.
	s.onQueries = nil
	for _, client := range []*Client{s.client, believing} {
		told := must(askQueries(s.ctx, client, s.queries))(t)
		s.heldTo(t, "the truth", told, client == s.client)
	}
}

// An answer under an older checkpoint hides what happened since, even if it holds for its version.
func TestABatchOfAnOlderLogIsRefused(t *testing.T) {
	s := setQueryScene(t)
	for what, at := range map[string]Moment{"a version": AtVersion(3), "a time": AtTime(s.times[2])} {
		var old queryMessages
		s.onQueries = func(all queryMessages) (queryMessages, error) { old = all; return all, nil }
		queries := []Query{{Keys: [][]byte{[]byte("a")}, At: at}}
		must(askQueries(s.ctx, s.client, queries))(t)
		s.onQueries = func(queryMessages) (queryMessages, error) { return old, nil }
		must(askQueries(s.ctx, s.client, queries))(t)
		must(s.client.Commit(s.ctx, put("a", what)))(t)
		if told, err := askQueries(s.ctx, s.client, queries); !errors.Is(err, ErrUntrusted) || len(told.parts) > 0 {
			t.Errorf("%s: %+v, %v", what, told.parts, err)
		}
	}
}

func TestHeadIsTheNewestVersionOfThisLedger(t *testing.T) {
	s := setQueryScene(t)
	key := [][]byte{[]byte("a")}
	older := must(s.queriesOf(&v1.Query{Keys: key, At: AtVersion(8).message()}))(t)
	s.onQueries = func(queryMessages) (queryMessages, error) { return older, nil }
	if told, err := askQueries(s.ctx, s.client, []Query{{Keys: key}}); !errors.Is(err, ErrUntrusted) {
		t.Errorf("%+v, %v", told.parts, err)
	}
	foreign := foreignQueries(t, &v1.Query{Keys: key})
	s.onQueries = func(queryMessages) (queryMessages, error) { return foreign, nil }
	told, err := askQueries(s.ctx, s.client, []Query{{Keys: key}})
	var failed *verify.Error
	if !errors.Is(err, ErrUntrusted) || !errors.As(err, &failed) || failed.Step != verify.StepCheckpoint {
		t.Errorf("%+v, %v", told.parts, err)
	}
}

func TestAFlippedBitOfAReplyIsSeenOrChangesNothing(t *testing.T) {
	s := setQueryScene(t)
	keys := [][]byte{[]byte("a"), []byte("b"), []byte("x"), []byte("nothing")}
	s.queries = []Query{{Keys: keys, At: AtTime(s.times[6]), Since: AtVersion(2)}}
	s.known = must(askQueries(s.ctx, s.client, s.queries))(t)
	_, request, err := s.client.queryReply(s.queries)
	truth := must(s.queriesWith(request))(t)
	if err != nil || len(truth) < 4 {
		t.Fatal(len(truth), err)
	}
	flips, seen := 0, 0
	for at := range truth {
		encoded := must(proto.Marshal(truth[at]))(t)
		for i := 0; i < len(encoded); i += 5 {
			flipped := &v1.QueryBatchResponse{}
			damaged := slices.Clone(encoded)
			damaged[i] ^= 1 << (i % 8)
			if proto.Unmarshal(damaged, flipped) != nil || flipped.Failure != nil {
				continue
			}
			reply, _, err := s.client.queryReply(s.queries)
			told := &replied{answers: map[placed][]QueryAnswer{}}
			for other := 0; other < len(truth) && err == nil; other++ {
				message := truth[other]
				if other == at {
					message = flipped
				}
				var part QueryPart
				if part, err = reply.take(s.ctx, message); err == nil {
					told.take(part)
				}
			}
			s.heldTo(t, fmt.Sprintf("byte %d of message %d", i, at), told, true)
			if flips++; err != nil || reply.open > 0 {
				seen++
			}
		}
	}
	if flips < 300 || seen*10 < flips*9 {
		t.Errorf("%d of %d are seen", seen, flips)
	}
}

func TestAReplyWithoutEndIsEndedByAClientWithoutAKeyToo(t *testing.T) {
	client := connect(t, Options{Endpoints: []string{"127.0.0.1:1"}, Unverified: true})
	walk := Query{Keys: [][]byte{[]byte("a")}, At: AtVersion(math.MaxUint64), Since: AtVersion(0)}
	reply, _, err := client.queryReply([]Query{walk})
	count := 0
	for version := uint64(math.MaxUint64); err == nil && count <= 2*queryStepsMax; version-- {
		var part QueryPart
		if part, err = reply.take(t.Context(), &v1.QueryBatchResponse{
			Places: []uint32{0}, Records: []*v1.Record{{Key: []byte("a")}}, UnchangedSince: []uint64{version},
			ReadAt: &v1.Stamp{Version: version},
		}); err == nil {
			count += len(part.Answers)
		}
	}
	if err == nil || err.Error() != "too many answers" || count != queryStepsMax+1 {
		t.Errorf("%d answers, %v", count, err)
	}
}

// A version of a time serves all times down to that of its header, and no other.
func TestTheVersionOfATimeServesEarlierTimesDownToItsOwn(t *testing.T) {
	times := timesOf([]uint64{50, 10, 20, 30, 30, 40})
	if len(times) != 5 {
		t.Fatalf("%+v", times)
	}
	at := func(ms uint64) (uint64, error) { return times.version(AtTime(time.UnixMilli(int64(ms)))) }
	for _, told := range []struct{ ms, from, version uint64 }{{40, 20, 7}, {50, 45, 8}, {30, 20, 7}} {
		if err := times.tell(told.ms, told.from, told.version); err != nil {
			t.Error(told, err)
		}
	}
	for ms, version := range map[uint64]uint64{20: 7, 30: 7, 40: 7, 50: 8} {
		if known, err := at(ms); err != nil || known != version {
			t.Errorf("%d: %d, %v", ms, known, err)
		}
	}
	for _, ms := range []uint64{10, 25, 60} {
		if known, err := at(ms); err == nil {
			t.Errorf("%d: %d", ms, known)
		}
	}
	for _, ms := range []uint64{40, 25} {
		if err := times.tell(ms, 5, 1); err == nil {
			t.Errorf("%d is told", ms)
		}
	}
}

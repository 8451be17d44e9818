package coppice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// placed is a key of a query, by the two indexes.
type placed struct{ query, key int }

// replied has the answers of a reply by their keys, in the order in which they came.
type replied struct {
	answers map[placed][]QueryAnswer
	parts   []QueryPart
}

// askQueries reads a reply to its end. What came before an error is there.
func askQueries(ctx context.Context, client *Client, queries []Query) (*replied, error) {
	r := &replied{answers: map[placed][]QueryAnswer{}}
	for part, err := range client.QueryBatch(ctx, queries) {
		if err != nil {
			return r, err
		}
		r.take(part)
	}
	return r, nil
}

func (r *replied) take(part QueryPart) {
	r.parts = append(r.parts, part)
	for _, answer := range part.Answers {
		at := placed{answer.Query, answer.Key}
		r.answers[at] = append(r.answers[at], answer)
	}
}

// queryModel has the versions that stand, from genesis on.
type queryModel struct {
	// values and changed have the value of each key, and the version of its last change.
	values  []map[string]string
	changed []map[string]uint64
	times   []uint64
	// boundary is the oldest version that is kept, and highest the largest that ever was.
	boundary, highest uint64
	// newest is the time of the newest header.
	newest uint64
}

var queryKeys = []string{"a", "b", "m", "x", "never"}

func (m *queryModel) head() uint64 { return uint64(len(m.values) - 1) }

// commit writes a batch of random changes, which gets a version of its own.
func (m *queryModel) commit(t testing.TB, client *Client, random *rand.Rand) {
	t.Helper()
	batch, values, changed := new(Batch), maps.Clone(m.values[m.head()]), maps.Clone(m.changed[m.head()])
	for _, at := range random.Perm(4)[:1+random.IntN(2)] {
		key, value := queryKeys[at], fmt.Sprint(random.Uint64())
		if random.IntN(4) == 0 {
			batch.Delete([]byte(key))
			delete(values, key)
		} else {
			batch.Put([]byte(key), []byte(value))
			values[key], changed[key] = value, m.head()+1
		}
	}
	header := must(verify.DecodeHeader(must(client.Commit(limited(t), batch))(t).Header))(t)
	m.values, m.changed = append(m.values, values), append(m.changed, changed)
	m.times, m.newest = append(m.times, header.TimestampMS), header.TimestampMS
	if header.Version != m.head() {
		t.Fatalf("version %d, and %d were to stand", header.Version, m.head())
	}
	m.highest = max(m.highest, m.head())
}

func (m *queryModel) rollBack(t testing.TB, client *Client, to uint64) {
	t.Helper()
	order := Order{Principal: "alice", Reason: "a test"}
	header := must(verify.DecodeHeader(must(client.Rollback(limited(t), to, order))(t).Header))(t)
	m.values, m.changed, m.times = m.values[:to+1], m.changed[:to+1], m.times[:to+1]
	m.newest = header.TimestampMS
}

func (m *queryModel) prune(t testing.TB, client *Client, before uint64) {
	t.Helper()
	order := Order{Principal: "alice", Reason: "a test"}
	ordered := must(client.Prune(limited(t), before, order))(t)
	m.boundary, m.newest = before, must(verify.DecodeHeader(ordered.Header))(t).TimestampMS
}

// version gives the version of a moment, or the reason why it has none.
func (m *queryModel) version(moment Moment) (uint64, Reason) {
	switch {
	case moment.kind == momentNone:
		return m.head(), ""
	case moment.kind == momentVersion:
		return moment.value, ""
	case moment.value < m.times[0]:
		return 0, NotFound
	case moment.value >= m.newest:
		return 0, NotYet
	}
	// Several versions may have one time: the newest counts.
	at := m.head()
	for m.times[at] > moment.value {
		at--
	}
	return at, ""
}

// moment is a version or a time around those that stand.
func (m *queryModel) moment(random *rand.Rand) Moment {
	at := random.Uint64N(m.head() + 1)
	switch random.IntN(8) {
	case 0:
		return Moment{}
	case 1:
		return AtVersion(m.head() + random.Uint64N(6))
	case 2:
		return AtTime(timeOf(m.times[0] - 1 - random.Uint64N(100)))
	case 3, 4:
		return AtTime(timeOf(m.times[at] + random.Uint64N(3)))
	}
	return AtVersion(at)
}

func (m *queryModel) query(random *rand.Rand) Query {
	query := Query{At: m.moment(random)}
	if random.IntN(2) == 0 {
		query.Since, query.Limit = m.moment(random), uint32(random.IntN(4))
	}
	for range 1 + random.IntN(5) {
		query.Keys = append(query.Keys, []byte(queryKeys[random.IntN(len(queryKeys))]))
	}
	return query
}

// ends checks that the last answer about a key is a failure for a reason.
func ends(answers []QueryAnswer, reasons ...Reason) error {
	if len(answers) != 1 || answers[0].More {
		return fmt.Errorf("not one failure (%v): %+v", reasons, answers)
	}
	for _, reason := range reasons {
		var failure *QueryFailure
		if errors.Is(answers[0].Err, reason) && errors.As(answers[0].Err, &failure) && failure.Message != "" {
			return nil
		}
	}
	return fmt.Errorf("another failure than one of %v: %+v", reasons, answers[0])
}

// check compares the answers about a key with the model.
func (m *queryModel) check(query *Query, key string, answers []QueryAnswer, tally map[string]int) error {
	next, reason := m.version(query.At)
	since, ofSince := m.version(query.Since)
	if reason == "" {
		reason = ofSince
	}
	if reason != "" {
		tally["times without a version"]++
		return ends(answers, reason)
	}
	if next > m.head() {
		if next > m.highest {
			tally["versions to come"]++
			return ends(answers, NotYet)
		}
		tally["versions that were rolled back"]++
		return ends(answers, RolledBack, NotYet)
	}
	for steps := uint32(1); ; steps++ {
		if next < m.boundary {
			tally["pruned versions"]++
			return ends(answers, Pruned)
		}
		if len(answers) == 0 {
			return fmt.Errorf("no answer of version %d", next)
		}
		answer := answers[0]
		if answer.Err != nil || answer.ReadAt.Version != next || answer.UnchangedSince > next {
			return fmt.Errorf("not an answer of version %d: %+v", next, answer)
		}
		if err := m.checkState(key, &answer); err != nil {
			return err
		}
		goesOn := query.Since.kind != momentNone && steps != query.Limit && answer.UnchangedSince > since
		if answer.More != goesOn || !goesOn && len(answers) > 1 {
			return fmt.Errorf("more: %v, and %d answers, of which the first is %+v", goesOn, len(answers), answer)
		}
		if !goesOn {
			return nil
		}
		tally["steps of walks"]++
		answers, next = answers[1:], answer.UnchangedSince-1
	}
}

// checkState compares a state with all versions for which it is given.
func (m *queryModel) checkState(key string, answer *QueryAnswer) error {
	for version := answer.UnchangedSince; version <= answer.ReadAt.Version; version++ {
		value, found := m.values[version][key]
		if found != (answer.Record != nil) || found && value != string(answer.Record.Value) {
			return fmt.Errorf("%q at %d: %+v", value, version, answer)
		}
	}
	if answer.Record == nil {
		return nil
	}
	changed := m.changed[answer.ReadAt.Version][key]
	record := answer.Record
	if answer.UnchangedSince != changed || record.LastChanged.Version != changed || string(record.Key) != key {
		return fmt.Errorf("changed in %d: %+v", changed, answer)
	}
	return nil
}

// Random queries, versions and times on a ledger that is rolled back and pruned meanwhile.
func TestQueriesAreAnsweredAsAModelAnswersThem(t *testing.T) {
	l := startLedger(t, t.TempDir(), "--split", "m", "--replicas", "1")
	ctx, trusting := limited(t), l.client(t)
	believing := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	genesis := must(verify.DecodeHeader(must(trusting.HeaderAt(ctx, 0))(t)))(t)
	m := &queryModel{
		values: []map[string]string{{}}, changed: []map[string]uint64{{}},
		times: []uint64{genesis.TimestampMS}, newest: genesis.TimestampMS,
	}
	random, tally := rand.New(rand.NewPCG(7, 1)), map[string]int{}
	for round := range 12 {
		for range 6 {
			m.commit(t, trusting, random)
		}
		switch {
		case round == 5 || round == 9:
			m.prune(t, trusting, m.boundary+1+random.Uint64N(m.head()-m.boundary))
		case round%3 == 1:
			m.rollBack(t, trusting, max(m.boundary, m.head()-1-random.Uint64N(5)))
		}
		queries := make([]Query, 40)
		for i := range queries {
			queries[i] = m.query(random)
		}
		for name, client := range map[string]*Client{"trusting": trusting, "believing": believing} {
			reply := must(askQueries(ctx, client, queries))(t)
			asked := 0
			for at := range queries {
				asked += len(queries[at].Keys)
				for number, key := range queries[at].Keys {
					err := m.check(&queries[at], string(key), reply.answers[placed{at, number}], tally)
					if err != nil {
						t.Fatalf("round %d, %s, %+v, %s: %v", round, name, queries[at], key, err)
					}
				}
			}
			if len(reply.answers) != asked {
				t.Errorf("%d keys have answers, and %d were asked for", len(reply.answers), asked)
			}
			checkProofs(t, l, reply, client == trusting, tally)
		}
	}
	for _, what := range []string{
		"times without a version", "versions to come", "versions that were rolled back", "pruned versions",
		"steps of walks", "proofs of times", "proofs of keys",
	} {
		if tally[what] < 5 {
			t.Errorf("%s: %d", what, tally[what])
		}
	}
}

// checkProofs verifies all proof files of a reply, each by itself: all are of one checkpoint.
func checkProofs(t testing.TB, l *ledger, reply *replied, proven bool, tally map[string]int) {
	t.Helper()
	key := *l.key(t)
	var note []byte
	stands := func(file []byte, question verify.Question) {
		t.Helper()
		v := must(verify.Verify(file, key, nil))(t)
		if err := v.Answers(question); err != nil {
			t.Fatal(err)
		}
		if note == nil {
			note = v.Note
		}
		if !bytes.Equal(note, v.Note) {
			t.Fatal("two checkpoints in one reply")
		}
	}
	for _, part := range reply.parts {
		for i := range part.Times {
			version := &part.Times[i].Version
			if (len(version.Proof) > 0) != proven {
				t.Fatalf("%+v", part.Times[i])
			}
			if proven {
				subject := verify.AboutTime(part.Times[i].Asked.UnixMilli())
				stands(version.Proof, verify.Question{Version: &version.Stamp.Version, Subject: subject})
				tally["proofs of times"]++
			}
		}
		answered := len(part.Answers) > 0 && part.Answers[0].Err == nil
		if (len(part.Proof) > 0) != (proven && answered) {
			t.Fatalf("%+v", part)
		}
		if len(part.Proof) > 0 {
			stands(part.Proof, verify.Question{Version: &part.Answers[0].ReadAt.Version})
			tally["proofs of keys"]++
		}
	}
}

func TestAKeyThatCannotBeReadFailsAloneAndABadBatchAsAWhole(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	must(client.Commit(ctx, put("alone", "1")))(t)
	key := []byte("alone")
	long := bytes.Repeat([]byte("k"), 600)
	reply := must(askQueries(ctx, client, []Query{{Keys: [][]byte{long, key, {}}}}))(t)
	for number, reason := range []Reason{LimitExceeded, "", InvalidArgument} {
		answers := reply.answers[placed{0, number}]
		if reason == "" {
			if len(answers) != 1 || answers[0].Err != nil || string(answers[0].Record.Value) != "1" {
				t.Errorf("%+v", answers)
			}
		} else if err := ends(answers, reason); err != nil {
			t.Error(err)
		}
	}
	many := make([][]byte, 16_385)
	for i := range many {
		many[i] = key
	}
	for what, refused := range map[string]struct {
		queries []Query
		reason  Reason
	}{
		"no query":             {nil, InvalidArgument},
		"a query without keys": {[]Query{{}}, InvalidArgument},
		"too many keys":        {[]Query{{Keys: many}}, LimitExceeded},
		"a time before 1970":   {[]Query{{Keys: [][]byte{key}, At: AtTime(time.UnixMilli(-1))}}, InvalidArgument},
		"a walk since then":    {[]Query{{Keys: [][]byte{key}, Since: AtTime(time.UnixMilli(-1))}}, InvalidArgument},
	} {
		var failed *Error
		reply, err := askQueries(ctx, client, refused.queries)
		typed := errors.As(err, &failed) && failed.Call == "QueryBatch" && errors.Is(err, refused.reason)
		if !typed || len(reply.parts) > 0 {
			t.Errorf("%s: %+v, %v", what, reply.parts, err)
		}
	}
}

func TestLargeValuesOfOneVersionComeInParts(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	query, batch := Query{}, new(Batch)
	for i := range 32 {
		key := fmt.Appendf(nil, "%c-large/%02d", 'a'+i%2*20, i)
		batch.Put(key, bytes.Repeat([]byte{byte(i)}, 60_000+i))
		query.Keys = append(query.Keys, key)
	}
	must(client.Commit(ctx, batch))(t)
	reply := must(askQueries(ctx, client, []Query{query}))(t)
	for i, key := range query.Keys {
		answers := reply.answers[placed{0, i}]
		if len(answers) != 1 || !bytes.Equal(answers[0].Record.Value, bytes.Repeat([]byte{byte(i)}, 60_000+i)) {
			t.Errorf("%s: %d answers", key, len(answers))
		}
	}
	if len(reply.parts) < 2 {
		t.Errorf("%d parts", len(reply.parts))
	}
}

func TestAReplyThatEndsEarlyFailsAndOneThatIsLeftEnds(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	first := must(client.Commit(ctx, put("early", "1")))(t)
	must(client.Commit(ctx, put("early", "2")))(t)
	keys := [][]byte{[]byte("early")}
	queries := []Query{{Keys: keys}, {Keys: keys, At: AtVersion(first.Stamp.Version)}}
	if reply := must(askQueries(ctx, client, queries))(t); len(reply.parts) != 2 {
		t.Fatalf("%+v", reply.parts)
	}
	r.onQueries = func(all []*v1.QueryBatchResponse) ([]*v1.QueryBatchResponse, error) { return all[:1], broken }
	reply, err := askQueries(ctx, client, queries)
	var failed *Error
	if !errors.As(err, &failed) || errors.Is(err, ErrUntrusted) || len(reply.parts) != 1 ||
		!strings.Contains(failed.Message, "broke") {
		t.Errorf("%+v, %v", reply.parts, err)
	}
	ended := make(chan struct{}, 1)
	r.onQueries = nil
	r.afterQueries = func(ctx context.Context) { <-ctx.Done(); ended <- struct{}{} }
	awaitEnd := func(what string) {
		t.Helper()
		select {
		case <-ended:
		case <-ctx.Done():
			t.Fatalf("%s: the call goes on", what)
		}
	}
	for part, err := range client.QueryBatch(ctx, queries) {
		if err != nil || len(part.Answers) != 1 {
			t.Errorf("%+v, %v", part, err)
		}
		break
	}
	awaitEnd("a reply that is left")
	canceled, cancel := context.WithCancel(ctx)
	parts := 0
	for _, err := range client.QueryBatch(canceled, queries) {
		if err == nil {
			if parts++; parts == 2 {
				cancel()
			}
		} else if !errors.Is(err, context.Canceled) {
			t.Error(err)
		} else {
			parts = -1
		}
	}
	if cancel(); parts != -1 {
		t.Error("a reply goes on behind its context")
	}
	awaitEnd("a context that ended")
	hasty := connect(t, Options{
		Endpoints: []string{r.endpoint}, Trust: l.key(t), AttemptTimeout: time.Second,
	})
	if reply, err := askQueries(ctx, hasty, queries); !errors.As(err, &failed) || len(reply.parts) != 2 ||
		!strings.Contains(failed.Message, "nothing came") {
		t.Errorf("%+v, %v", reply.parts, err)
	}
	awaitEnd("a silent coordinator")
}

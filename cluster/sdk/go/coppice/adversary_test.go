package coppice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

func (r *relay) client(t testing.TB, l *ledger) *Client {
	t.Helper()
	return connect(t, Options{Endpoints: []string{r.endpoint}, Trust: l.key(t), Patience: 200 * time.Millisecond})
}

func TestNoLieAboutAReadIsBelieved(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	key, other := []byte("lie/a"), []byte("lie/b")
	before := must(client.Commit(ctx, put("lie/a", "1").Put(other, []byte("9"))))(t)
	must(client.Commit(ctx, put("lie/a", "2")))(t)
	honest := must(client.Get(ctx, key, nil))(t)
	of := func(key []byte, at *Stamp) *v1.BatchGetResponse {
		options := &v1.ReadOptions{WantProof: true, ValuesInProof: true}
		if at != nil {
			options.At = toStamp(*at)
		}
		return must(r.ledger.BatchGet(ctx, &v1.BatchGetRequest{Keys: [][]byte{key}, Read: options}))(t)
	}
	ofOther := of(other, nil)
	must(client.Commit(ctx, put("lie/a", "3")))(t)
	for name, lie := range map[string]func(*v1.BatchGetResponse){
		"no proof":             func(a *v1.BatchGetResponse) { a.Proof = nil },
		"a damaged proof":      func(a *v1.BatchGetResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"the proof of another": func(a *v1.BatchGetResponse) { a.Proof, a.ReadAt = ofOther.Proof, ofOther.ReadAt },
		"an older version": func(a *v1.BatchGetResponse) {
			old := of(key, &before.Stamp)
			a.Proof, a.ReadAt = old.Proof, old.ReadAt
		},
		"what was head before":   func(a *v1.BatchGetResponse) { a.Proof, a.ReadAt = honest.Proof, toStamp(honest.ReadAt) },
		"another version's name": func(a *v1.BatchGetResponse) { a.ReadAt.Version-- },
		"no record":              func(a *v1.BatchGetResponse) { a.Records = nil },
		"two records":            func(a *v1.BatchGetResponse) { a.Records = append(a.Records, a.Records[0]) },
	} {
		r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) error { lie(a); return nil }
		if got, err := client.Get(ctx, key, nil); !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	// Only the proof counts, and not what the coordinator says beside it.
	r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) error {
		a.Records[0].Value, a.Records[0].Found, a.Records[0].LastChanged = []byte("lie"), false, nil
		return nil
	}
	if got := must(client.Get(ctx, key, nil))(t); string(got.Record.Value) != "3" {
		t.Errorf("%+v", got)
	}
	// A stale read accepts a proof of the old head, and a read of another version refuses it.
	r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) error {
		a.Proof, a.ReadAt = honest.Proof, toStamp(honest.ReadAt)
		return nil
	}
	if got := must(client.Get(ctx, key, &Read{StaleOK: true}))(t); string(got.Record.Value) != "2" {
		t.Errorf("%+v", got)
	}
	if err := second(client.Get(ctx, key, &Read{At: &before.Stamp})); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
}

// whole joins the messages of a range.
func whole(all []*v1.RangeResponse) *v1.RangeResponse {
	one := &v1.RangeResponse{}
	for _, message := range all {
		one.Records = append(one.Records, message.Records...)
		one.End = message.End
	}
	return one
}

// countRange reads a range to its end.
func countRange(ctx context.Context, client *Client, low, high string) (count int, err error) {
	for _, err = range client.Range(ctx, []byte(low), []byte(high), nil) {
		if err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

func TestNoLieAboutARangeIsBelieved(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	batch := new(Batch)
	for i := range pageRecords + 3 {
		batch.Put(fmt.Appendf(nil, "ranged/%04d", i), []byte("v"))
	}
	must(client.Commit(ctx, batch))(t)
	read := func() (int, error) { return countRange(ctx, client, "ranged/", "ranged0") }
	if count := must(read())(t); count != pageRecords+3 {
		t.Fatalf("%d records", count)
	}
	for name, lie := range map[string]func(*v1.RangeResponse){
		"a record left out":         func(a *v1.RangeResponse) { a.Records = slices.Delete(a.Records, 1, 2) },
		"the last record left out":  func(a *v1.RangeResponse) { a.Records = a.Records[:len(a.Records)-1] },
		"another value":             func(a *v1.RangeResponse) { a.Records[0].Value = []byte("w") },
		"another stamp":             func(a *v1.RangeResponse) { a.Records[0].LastChanged.Version++ },
		"nothing more":              func(a *v1.RangeResponse) { a.End.More = !a.End.More },
		"no end":                    func(a *v1.RangeResponse) { a.End = nil },
		"no proof":                  func(a *v1.RangeResponse) { a.End.Proof = nil },
		"two records changed over":  func(a *v1.RangeResponse) { a.Records[0], a.Records[1] = a.Records[1], a.Records[0] },
		"a record of another range": func(a *v1.RangeResponse) { a.Records[0].Key = []byte("a") },
		"the end of the last page left out": func(a *v1.RangeResponse) {
			if !a.End.More {
				a.Records = a.Records[:len(a.Records)-1]
			}
		},
		"nothing in the last page": func(a *v1.RangeResponse) {
			if !a.End.More {
				a.Records = nil
			}
		},
		"no records": func(a *v1.RangeResponse) { a.Records = nil },
	} {
		r.onRange = func(all []*v1.RangeResponse) []*v1.RangeResponse {
			one := whole(all)
			lie(one)
			return []*v1.RangeResponse{one}
		}
		if count, err := read(); !errors.Is(err, ErrUntrusted) || count > pageRecords {
			t.Errorf("%s: %d records, %v", name, count, err)
		}
	}
	r.onRange = func(all []*v1.RangeResponse) []*v1.RangeResponse {
		return []*v1.RangeResponse{whole(all), whole(all)}
	}
	if _, err := read(); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
}

// Nothing can follow between the last record and its successor.
func TestARangeThatIsFullDoesNotGoOn(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	batch := new(Batch)
	for i := range pageRecords + 1 {
		batch.Put(fmt.Appendf(nil, "full/%04d", i), []byte("v"))
	}
	must(client.Commit(ctx, batch))(t)
	read := func() (int, error) {
		return countRange(ctx, client, "full/", fmt.Sprintf("full/%04d\x00", pageRecords-1))
	}
	if count := must(read())(t); count != pageRecords {
		t.Errorf("%d records", count)
	}
	r.onRange = func(all []*v1.RangeResponse) []*v1.RangeResponse {
		one := whole(all)
		one.End.More = true
		return []*v1.RangeResponse{one}
	}
	if _, err := read(); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
}

func TestNoLieAboutACommitIsBelieved(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	earlier := must(client.Commit(ctx, put("commit/a", "1")))(t)
	for name, lie := range map[string]func(*v1.CommitResponse){
		"the receipt of another": func(a *v1.CommitResponse) { a.Receipt = earlier.Receipt },
		"the answer to another": func(a *v1.CommitResponse) {
			a.Receipt, a.Header, a.Stamp = earlier.Receipt, earlier.Header, toStamp(earlier.Stamp)
		},
		"a damaged receipt": func(a *v1.CommitResponse) { a.Receipt[100] ^= 1 },
		"another version":   func(a *v1.CommitResponse) { a.Stamp.Version++ },
		"another header":    func(a *v1.CommitResponse) { a.Header = earlier.Header },
		"no header":         func(a *v1.CommitResponse) { a.Header = nil },
	} {
		r.onCommit = func(_ *v1.CommitRequest, a *v1.CommitResponse) error { lie(a); return nil }
		if got, err := client.Commit(ctx, put("commit/a", name)); !errors.Is(err, ErrUntrusted) || !OutcomeUnknown(err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	r.onCommit = func(_ *v1.CommitRequest, a *v1.CommitResponse) error { a.Receipt = nil; return nil }
	if err := second(client.Commit(ctx, put("commit/a", "2"))); !errors.Is(err, Unavailable) || !OutcomeUnknown(err) {
		t.Error(err)
	}
	r.onCommit = nil
	// A genesis header with other shards is found at the first receipt.
	fresh := r.client(t, l)
	r.onHeader = func(a *v1.GetHeaderResponse) { a.Header = earlier.Header }
	if err := second(fresh.Commit(ctx, put("commit/a", "3"))); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
	r.onHeader = nil
	// So are shards that differ where the batch does not write.
	shards := slices.Clone(must(client.shards(ctx))(t))
	if len(shards) < 2 || string(shards[0].High) <= "commit/a" {
		t.Fatalf("the shards of the ledger: %+v", shards)
	}
	shards[0].High = append(slices.Clone(shards[0].High), 'x')
	shards[1].Low = shards[0].High
	fresh = r.client(t, l)
	fresh.trust.shards = shards
	if err := second(fresh.Commit(ctx, put("commit/a", "3"))); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
	stream := must(client.OpenSession(ctx, NewSessionID()))(t).Stream()
	r.onStream = func(a *v1.CommitStreamResponse) { a.Number++ }
	must(stream.Push(ctx, put("commit/a", "4")))(t)
	if err := second(stream.Next(ctx)); !errors.Is(err, ErrUntrusted) || !OutcomeUnknown(err) {
		t.Error(err)
	}
}

func TestALostAnswerIsAskedForAgainOnlyWhereThatIsSafe(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := connect(t, Options{Endpoints: []string{r.endpoint}, Trust: l.key(t)})
	lose := 0
	r.onCommit = func(*v1.CommitRequest, *v1.CommitResponse) error {
		if lose > 0 {
			lose--
			return broken
		}
		return nil
	}
	lose = 1
	var failed *Error
	if err := second(client.Commit(ctx, put("lost/a", "1"))); !errors.As(err, &failed) || !failed.OutcomeUnknown ||
		failed.Attempts != 1 {
		t.Error(err)
	}
	session := must(client.OpenSession(ctx, NewSessionID()))(t)
	lose = 2
	calls := r.count("Commit")
	if answer := must(session.Commit(ctx, put("lost/a", "2")))(t); !answer.Replayed || r.count("Commit") != calls+3 {
		t.Errorf("%+v after %d calls", answer, r.count("Commit")-calls)
	}
	// A watch goes on where it broke.
	breaks := 0
	r.onHeads = func(m *v1.WatchHeadsResponse) error {
		if breaks++; breaks%3 == 0 {
			return broken
		}
		return nil
	}
	next := uint64(0)
	for head, err := range client.WatchHeads(ctx, Watch{}) {
		if err != nil {
			t.Fatal(err)
		}
		if head.Header.Sequence != next {
			t.Fatalf("header %d, not %d", head.Header.Sequence, next)
		}
		next++
	}
	if breaks < 3 {
		t.Error("the stream did not break")
	}
	// A header that does not follow is found by the next one.
	must(session.Commit(ctx, put("lost/a", "3")))(t)
	r.onHeads = func(m *v1.WatchHeadsResponse) error {
		if header, err := verify.DecodeHeader(m.Header); err == nil && header.Sequence == 2 {
			m.Header[60] ^= 1
		}
		return nil
	}
	var last error
	for _, err := range client.WatchHeads(ctx, Watch{}) {
		last = err
	}
	if !errors.Is(last, ErrUntrusted) {
		t.Error(last)
	}
}

// forks gives two ledgers that had one log up to the same entry.
func forks(t *testing.T) (a, b *ledger) {
	t.Helper()
	first, second := t.TempDir(), t.TempDir()
	l := startLedger(t, first)
	client := l.client(t)
	for i := range 3 {
		must(client.Commit(limited(t), put("k", fmt.Sprint(i))))(t)
	}
	l.Stop()
	if err := os.CopyFS(second, os.DirFS(first)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(second, "ledger.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startLedger(t, first), startLedger(t, second)
}

func TestAForkIsFoundAndBothNotesAreKept(t *testing.T) {
	a, b := forks(t)
	ctx := limited(t)
	r := startRelay(t, a, insecure.NewCredentials())
	client := r.client(t, a)
	must(a.client(t).Commit(ctx, put("fork", "a")))(t)
	must(b.client(t).Commit(ctx, put("fork", "b")))(t)
	must(client.Get(ctx, []byte("fork"), nil))(t)
	memory := client.Memory()
	isFork := func(name string, err error) {
		t.Helper()
		var fork *ForkError
		if !errors.As(err, &fork) || !errors.Is(err, ErrUntrusted) {
			t.Fatalf("%s: %v", name, err)
		}
		known, err := verify.OpenCheckpoint(fork.Known, *a.key(t))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		shown, err := verify.OpenCheckpoint(fork.Shown, *a.key(t))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if known == shown || len(fork.Proof) == 0 {
			t.Errorf("%s: one checkpoint, or no proof", name)
		}
	}
	// The fork has the same size.
	r.show(t, b)
	isFork("of one size", second(client.Get(ctx, []byte("fork"), nil)))
	// The fork has another size: the proof of growth is of another log.
	must(b.client(t).Commit(ctx, put("fork", "c")))(t)
	later := connect(t, Options{Endpoints: []string{r.endpoint}, Trust: a.key(t), Memory: &memory})
	later.trust.interval = 0
	isFork("of another size", second(later.Get(ctx, []byte("fork"), nil)))
	// A shorter log is older than what was seen.
	must(a.client(t).Commit(ctx, put("fork", "d")))(t)
	must(a.client(t).Commit(ctx, put("fork", "e")))(t)
	r.show(t, a)
	old := connect(t, Options{Endpoints: []string{r.endpoint}, Trust: a.key(t)})
	must(old.Get(ctx, []byte("fork"), nil))(t)
	r.show(t, b)
	if err := second(old.Get(ctx, []byte("fork"), nil)); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
}

// Two proofs of growth, from two checkpoints that both logs have, end in two logs of one size.
func TestAForkBetweenTwoProofsOfGrowthIsFound(t *testing.T) {
	a, b := forks(t)
	ctx := limited(t)
	r, other := startRelay(t, a, insecure.NewCredentials()), startRelay(t, b, insecure.NewCredentials())
	client := r.client(t, a)
	must(client.Get(ctx, []byte("k"), nil))(t)
	client.trust.mutex.Lock()
	newest := *client.trust.newest
	client.trust.proven = &seen{}
	client.trust.mutex.Unlock()
	// The newest proven log has the genesis entry alone.
	genesis := must(client.HeaderAt(ctx, 0))(t)
	client.trust.proven.Checkpoint = verify.Checkpoint{Origin: newest.Origin, Size: 1, Root: verify.EntryHash(genesis)}
	must(a.client(t).Commit(ctx, put("fork", "a")))(t)
	must(b.client(t).Commit(ctx, put("fork", "b")))(t)
	r.checkpointOf = func(oldSize uint64) v1.LedgerClient {
		if oldSize == 1 {
			return other.ledger
		}
		return r.ledger
	}
	var fork *ForkError
	if err := client.grow(ctx); !errors.As(err, &fork) {
		t.Error(err)
	}
}

// A replaced key signed the checkpoint. The client asked for it before it saw the change of keys.
func TestALateCheckpointIsEvidence(t *testing.T) {
	key := sharedLedger(t).key(t)
	next := verify.PublicKey{1, 2, 3}
	trusted := must(newTrust(*key, nil))(t)
	trusted.changes = []verify.KeyChange{{Sequence: 5, Number: 1, Old: key.Key, New: next}}
	trusted.newest = &seen{note: []byte("known")}
	shown := &verify.Verified{SignedBy: *key, Checkpoint: verify.Checkpoint{Size: 6}, Note: []byte("late")}
	var fork *ForkError
	if err := trusted.learn(shown, []byte("file")); !errors.As(err, &fork) || string(fork.Shown) != "late" ||
		string(fork.Known) != "known" || string(fork.Proof) != "file" {
		t.Errorf("%v", err)
	}
	shown.Checkpoint.Size = 5
	if err := trusted.learn(shown, nil); err != nil || trusted.key.Key != next {
		t.Errorf("%v", err)
	}
	shown.KeyChanges = []verify.KeyChange{{Sequence: 4, Number: 1, Old: key.Key, New: verify.PublicKey{4}}}
	if err := trusted.learn(shown, nil); !errors.As(err, &fork) {
		t.Errorf("%v", err)
	}
}

func TestTheLogMustBeProvenToGrow(t *testing.T) {
	l := startLedger(t, t.TempDir())
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := connect(t, Options{Endpoints: []string{r.endpoint}, Trust: l.key(t), Patience: time.Millisecond})
	client.trust.interval, client.trust.patience = 0, 50*time.Millisecond
	must(client.Commit(ctx, put("k", "1")))(t)
	r.onCheckpoint = func(*v1.GetCheckpointResponse) error { return broken }
	// A while without the proof is allowed, and then no answer is believed.
	deadline := time.Now().Add(testPatience)
	for {
		err := second(client.Commit(ctx, put("k", "2")))
		if errors.Is(err, Unavailable) {
			if !OutcomeUnknown(err) {
				t.Error("the commit may be there")
			}
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	r.onCheckpoint = func(a *v1.GetCheckpointResponse) error { a.Standing[50] ^= 1; return nil }
	if err := second(client.Get(ctx, []byte("k"), nil)); !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
	r.onCheckpoint = nil
	must(client.Get(ctx, []byte("k"), nil))(t)
	size := must(verify.CheckpointSize(client.Memory().Checkpoint))(t)
	if head := must(client.Head(ctx))(t); head.LogSize != size {
		t.Errorf("%d entries are proven, of %d", size, head.LogSize)
	}
}

// Head passes the call on, for the test above.
func (r *relay) Head(ctx context.Context, request *v1.HeadRequest) (*v1.HeadResponse, error) {
	return r.to("Head").Head(ctx, request)
}

func TestDeadAndSilentCoordinatorsAreGoneAround(t *testing.T) {
	l := sharedLedger(t)
	ctx := limited(t)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := dead.Addr().String()
	_ = dead.Close()
	client := connect(t, Options{Endpoints: []string{address, l.Endpoint}, Trust: l.key(t)})
	must(client.Commit(ctx, put("dead/a", "1")))(t)
	if got := must(client.Get(ctx, []byte("dead/a"), nil))(t); string(got.Record.Value) != "1" {
		t.Errorf("%+v", got)
	}
	// Nobody is there: the call ends, and certainly did nothing.
	alone := connect(t, Options{Endpoints: []string{address}, Trust: l.key(t), Patience: 100 * time.Millisecond})
	var failed *Error
	if err := second(alone.Commit(ctx, put("dead/a", "2"))); !errors.As(err, &failed) || failed.OutcomeUnknown ||
		failed.Attempts < 2 {
		t.Error(err)
	}
	// A silent coordinator takes connections and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	patient := connect(
		t,
		Options{Endpoints: []string{silent.Addr().String(), l.Endpoint}, Trust: l.key(t), Patience: 20 * time.Second},
	)
	if got := must(patient.Get(ctx, []byte("dead/a"), nil))(t); string(got.Record.Value) != "1" {
		t.Errorf("%+v", got)
	}
	must(patient.Get(ctx, []byte("dead/a"), nil))(t)
	lone := connect(
		t,
		Options{
			Endpoints:      []string{silent.Addr().String()},
			Trust:          l.key(t),
			AttemptTimeout: 50 * time.Millisecond,
			Patience:       time.Millisecond,
		},
	)
	if err := second(lone.Get(ctx, []byte("dead/a"), nil)); !errors.As(err, &failed) {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	waiting := connect(t, Options{Endpoints: []string{silent.Addr().String()}, Trust: l.key(t)})
	if err := second(waiting.Get(short, []byte("dead/a"), nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := client.LearnEndpoints(ctx); err != nil || len(client.Endpoints()) < 2 {
		t.Errorf("%v: %v", client.Endpoints(), err)
	}
}

func TestAnAnswerOfTooManyPartsIsNotDecoded(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) error {
		a.Records = slices.Repeat([]*v1.Record{{}}, fieldsMax+1)
		return nil
	}
	if err := second(client.Get(ctx, []byte("k"), nil)); err == nil {
		t.Error("it was taken")
	}
	r.onHeader = func(a *v1.GetHeaderResponse) { a.Header = make([]byte, shortBytesMax) }
	if err := second(client.HeaderAt(ctx, 0)); err == nil {
		t.Error("a header of 1 MiB is taken")
	}
	empty := []byte{0x0a, 0}
	if err := checkFields(bytes.Repeat(empty, fieldsMax)); err != nil {
		t.Error(err)
	}
	if checkFields(bytes.Repeat(empty, fieldsMax+1)) == nil {
		t.Error("a message of too many parts is taken")
	}
	for _, message := range [][]byte{{0x0b}, {0x0a, 0xff}, {0xff}, {0x0a, 0x05, 1}} {
		if checkFields(message) == nil {
			t.Errorf("%x is taken for a message", message)
		}
	}
}

func TestValuesThatAreTooManyForAProofComeBesideItAndAreChecked(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	batch, keys := new(Batch), [][]byte{[]byte("large/none")}
	for i := range 5 {
		key := fmt.Appendf(nil, "large/%d", i)
		batch, keys = batch.Put(key, bytes.Repeat([]byte{byte(i + 1)}, 900<<10)), append(keys, key)
	}
	must(client.Commit(ctx, batch))(t)
	withValues := -1
	r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) error {
		withValues = len(a.Records[1].Value)
		return nil
	}
	got := must(client.BatchGet(ctx, keys, nil))(t)
	if withValues != 900<<10 || got.Records[0] != nil {
		t.Fatalf("%d bytes beside the proof, %+v", withValues, got.Records[0])
	}
	for i, record := range got.Records[1:] {
		if len(record.Value) != 900<<10 || record.Value[0] != byte(i+1) {
			t.Errorf("%s has %d bytes", record.Key, len(record.Value))
		}
	}
	r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) error {
		a.Records[3].Value[7] ^= 1
		return nil
	}
	if _, err := client.BatchGet(ctx, keys, nil); !errors.Is(err, ErrUntrusted) {
		t.Errorf("an altered value is believed: %v", err)
	}
}

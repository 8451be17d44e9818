package coppice

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// timeIn is the time of a header.
func timeIn(t testing.TB, header []byte) time.Time {
	t.Helper()
	return timeOf(must(verify.DecodeHeader(header))(t).TimestampMS)
}

// commitLater waits until the clock is behind a time, and then commits.
func commitLater(t testing.TB, client *Client, batch *Batch, after time.Time) (Stamp, time.Time) {
	t.Helper()
	for end := time.Now().Add(testPatience); !time.Now().Truncate(time.Millisecond).After(after); {
		if time.Now().After(end) {
			t.Fatalf("the clock does not go beyond %s", after)
		}
		time.Sleep(time.Millisecond)
	}
	committed := must(client.Commit(limited(t), batch))(t)
	at := timeIn(t, committed.Header)
	if !at.After(after) {
		t.Fatalf("a commit at %s, and the clock was behind %s", at, after)
	}
	return committed.Stamp, at
}

func TestAReadAtATimeIsOfTheVersionOfThatTime(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	trusting := r.client(t, l)
	believing := connect(t, Options{Endpoints: []string{r.endpoint}, Unverified: true})
	batch := new(Batch)
	for i := range pageRecords + 3 {
		batch.Put(fmt.Appendf(nil, "timed/%04d", i), []byte("1"))
	}
	first, at := commitLater(t, trusting, batch.Put([]byte("timely"), []byte("1")), time.Time{})
	second, later := commitLater(t, trusting, put("timely", "2").Delete([]byte("timed/0000")), at)
	_, last := commitLater(t, trusting, put("timely", "3"), later)
	for name, client := range map[string]*Client{"trusting": trusting, "believing": believing} {
		for _, c := range []struct {
			at    time.Time
			value string
			stamp Stamp
		}{
			{at, "1", first},
			{later.Add(-time.Nanosecond), "1", first},
			{later, "2", second},
			{last.Add(-time.Millisecond), "2", second},
		} {
			got := must(client.Get(ctx, []byte("timely"), &Read{AtTime: c.at, StaleOK: true}))(t)
			if string(got.Record.Value) != c.value || got.ReadAt != c.stamp {
				t.Errorf("%s, at %s: %+v", name, c.at, got)
			}
		}
		count := 0
		for record, err := range client.Range(ctx, []byte("timed/"), []byte("timed0"), &Read{AtTime: at}) {
			if err != nil || record.LastChanged != first {
				t.Fatalf("%s: %+v, %v", name, record, err)
			}
			count++
		}
		if count != pageRecords+3 {
			t.Errorf("%s: %d records", name, count)
		}
		var changes []string
		for change, err := range client.History(ctx, []byte("timely"), 1, &Read{AtTime: later}) {
			if err != nil {
				t.Fatal(name, err)
			}
			changes = append(changes, string(change.Value))
		}
		if len(changes) != 1 || changes[0] != "2" {
			t.Errorf("%s: %q", name, changes)
		}
		calls := r.count("BatchGet")
		for what, refused := range map[string]struct {
			read   Read
			reason Reason
		}{
			"the time of the newest header": {Read{AtTime: last}, NotYet},
			"a time before genesis":         {Read{AtTime: time.UnixMilli(1)}, NotFound},
			"a time before 1970":            {Read{AtTime: time.UnixMilli(-1)}, InvalidArgument},
			"a version, too":                {Read{AtTime: at, At: &first}, InvalidArgument},
			"any epoch":                     {Read{AtTime: at, AnyEpoch: true}, InvalidArgument},
		} {
			if got, err := client.Get(ctx, []byte("timely"), &refused.read); !errors.Is(err, refused.reason) {
				t.Errorf("%s, %s: %+v, %v", name, what, got, err)
			}
		}
		if client == trusting && r.count("BatchGet") != calls {
			t.Error("something is read at a version that is not proven")
		}
	}
}

func TestALedgerIsDescribedAtATime(t *testing.T) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "timed")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	appended := must(bank.Append(ctx, new(Draft).Add([]byte("one"))))(t)
	at := timeIn(t, must(client.HeaderOf(ctx, appended.Stamp.Version))(t))
	commitLater(t, client, put("later", "1"), at)
	must(bank.Append(ctx, new(Draft).Add([]byte("two"))))(t)
	info := must(client.FindLedger(ctx, "timed", &Read{AtTime: at}))(t)
	if info.Size != 2 || info.ReadAt != appended.Stamp {
		t.Errorf("%+v", info)
	}
}

func TestTheVersionOfATimeIsProven(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	first, at := commitLater(t, client, put("when", "1"), time.Time{})
	second, later := commitLater(t, client, put("when", "2"), at)
	found := must(client.VersionAt(ctx, at, false))(t)
	if found.Stamp != first || !found.Time.Equal(at) || found.Next == nil || *found.Next != second ||
		!found.NextTime.Equal(later) || !found.Final || len(found.Proof) == 0 {
		t.Errorf("%+v", found)
	}
	if proof := must(verify.Verify(found.Proof, *l.key(t), nil))(t); proof.Time.TimeMS != uint64(at.UnixMilli()) {
		t.Errorf("%+v", proof.Time)
	}
	newest := must(client.VersionAt(ctx, later.Add(time.Hour), false))(t)
	if newest.Stamp != second || newest.Next != nil || newest.Final {
		t.Errorf("%+v", newest)
	}
	believing := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	told := must(believing.VersionAt(ctx, at, false))(t)
	if told.Stamp != first || *told.Next != second || len(told.Proof) != 0 {
		t.Errorf("%+v", told)
	}
	for what, reason := range map[time.Time]Reason{time.UnixMilli(1): NotFound, time.UnixMilli(-1): InvalidArgument} {
		if _, err := client.VersionAt(ctx, what, false); !errors.Is(err, reason) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestNoLieAboutATimeIsBelieved(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	first, at := commitLater(t, client, put("late", "1"), time.Time{})
	second, later := commitLater(t, client, put("late", "2"), at)
	_, last := commitLater(t, client, put("late", "3"), later)
	of := func(at time.Time) *v1.TimeResponse {
		request := &v1.TimeRequest{TimeMs: uint64(at.UnixMilli()), WantProof: true}
		return must(r.ledger.Time(ctx, request))(t)
	}
	aKey := must(client.Get(ctx, []byte("late"), nil))(t)
	honest := of(later)
	for what, lie := range map[string]func(*v1.TimeResponse){
		"another version":                  func(a *v1.TimeResponse) { a.Stamp = toStamp(first) },
		"another time of the version":      func(a *v1.TimeResponse) { a.TimestampMs-- },
		"no next version":                  func(a *v1.TimeResponse) { a.Next = nil },
		"another next version":             func(a *v1.TimeResponse) { a.Next.Version++ },
		"another time of the next version": func(a *v1.TimeResponse) { a.NextTimestampMs++ },
		"not final":                        func(a *v1.TimeResponse) { a.IsFinal = false },
		"the answer for another time":      func(a *v1.TimeResponse) { become(a, of(at)) },
		"no proof":                         func(a *v1.TimeResponse) { a.Proof = nil },
		"a damaged proof":                  func(a *v1.TimeResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"a proof of a key":                 func(a *v1.TimeResponse) { a.Proof = aKey.Proof },
	} {
		r.onTime = lie
		calls := r.count("BatchGet")
		found, err := client.VersionAt(ctx, later, false)
		isLie(t, what, found, err)
		got, err := client.Get(ctx, []byte("late"), &Read{AtTime: later})
		if isLie(t, what, got, err); r.count("BatchGet") != calls {
			t.Errorf("%s: it is read at a version that is not proven", what)
		}
	}
	r.onTime = func(a *v1.TimeResponse) { a.Next, a.NextTimestampMs = toStamp(second), a.TimestampMs }
	head, err := client.VersionAt(ctx, last, false)
	isLie(t, "a version behind head", head, err)
	r.onTime = nil
	must(client.Commit(ctx, put("late", "4")))(t)
	must(client.Get(ctx, []byte("late"), nil))(t)
	r.onTime = func(a *v1.TimeResponse) { become(a, proto.Clone(honest).(*v1.TimeResponse)) }
	found, err := client.VersionAt(ctx, later, false)
	isLie(t, "an older log", found, err)
	// Witnesses may lag behind.
	if found := must(client.VersionAt(ctx, later, true))(t); found.Stamp != second {
		t.Errorf("%+v", found)
	}
	r.onTime = nil
	// A read of another version than the proven one is refused.
	r.onBatchGet = func(request *v1.BatchGetRequest, a *v1.BatchGetResponse) error {
		request.Read.At = toStamp(first)
		become(a, must(r.ledger.BatchGet(ctx, request))(t))
		return nil
	}
	got, err := client.Get(ctx, []byte("late"), &Read{AtTime: last.Add(-time.Millisecond)})
	isLie(t, "another version than the proven one", got, err)
}

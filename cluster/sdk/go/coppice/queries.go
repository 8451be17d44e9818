package coppice

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// queryStepsMax bounds the states beyond the first one of each key: a coordinator gives no more.
const queryStepsMax = 1 << 17

// Moment names a version of the ledger: AtVersion or AtTime. The zero Moment names none.
type Moment struct {
	kind momentKind
	// value is the number of the version, or the time in ms.
	value uint64
}

type momentKind uint8

const (
	momentNone momentKind = iota
	momentVersion
	momentTime
)

// AtVersion names a version, in the epoch in which it stands.
func AtVersion(version uint64) Moment { return Moment{momentVersion, version} }

// AtTime names the newest version that is not later than a time, by the ledger's clock. Parts of a
// millisecond are dropped.
func AtTime(at time.Time) Moment { return Moment{momentTime, uint64(at.UnixMilli())} }

func (m Moment) message() *v1.Moment {
	switch m.kind {
	case momentVersion:
		return &v1.Moment{Moment: &v1.Moment_Version{Version: m.value}}
	case momentTime:
		return &v1.Moment{Moment: &v1.Moment_TimeMs{TimeMs: m.value}}
	}
	return nil
}

// Query asks for keys of one version, or for all states that they had over a range of versions.
type Query struct {
	Keys [][]byte
	// At is the version to read. The zero Moment is head.
	At Moment
	// Since asks for each state that a key had since then, up to At. The zero Moment asks for one.
	Since Moment
	// Limit is, with Since, the number of the newest states of each key; 0 is no limit.
	Limit uint32
}

// QueryPart is a part of the reply to a batch of queries. It has Times or Answers.
type QueryPart struct {
	// Times are the versions of times that the queries name.
	Times []QueryTime
	// Answers are about keys. Those that are not failures are all of one version.
	Answers []QueryAnswer
	// Proof is the proof file of the answers, for others to verify. It is nil for an unverified client
	// and for a failure.
	Proof []byte
}

// QueryTime is the version of a time. It is also that of all earlier times that are not before
// Version.Time.
type QueryTime struct {
	// Asked is the time in the query.
	Asked   time.Time
	Version VersionTime
}

// QueryAnswer is an answer about one key: a state that it had, or a failure.
type QueryAnswer struct {
	// Query is the index of the query in the batch, and Key that of the key in the query.
	Query, Key int
	// Err is a *QueryFailure if the key gets no answer, or no further one. Otherwise it is nil.
	Err error
	// Record is nil if the key had no value.
	Record *Record
	// ReadAt is the version that was read. The key did not change from UnchangedSince up to there.
	ReadAt         Stamp
	UnchangedSince uint64
	// More says that answers about older states of the key follow.
	More bool
}

// QueryFailure is a coordinator's reason for giving no answer about a key. It is the coordinator's
// word. errors.Is finds its Reason.
type QueryFailure struct {
	Reason  Reason
	Message string
}

func (f *QueryFailure) Error() string {
	return fmt.Sprintf("coppice: a query: %s (%s)", f.Message, string(f.Reason))
}

// Is compares the reason.
func (f *QueryFailure) Is(target error) bool {
	reason, is := target.(Reason)
	return is && reason != "" && reason == f.Reason
}

// QueryBatch answers many queries for much less work than as many calls of Get. All answers are of
// one state of the log. They come in any order, but those about one key of a query come newest
// first. A query may fail by itself (QueryAnswer.Err). If the sequence ends with an error, the
// parts before it hold.
//
// Each part is verified before it is given. A walk through the states of a key leaves no version
// out and shows none twice: the next state is of the version before UnchangedSince, which the proof
// shows. A sequence without an error has all answers. One part is in memory at a time, with a few
// numbers for each key and each time. A batch may have 16,384 keys.
func (c *Client) QueryBatch(ctx context.Context, queries []Query) iter.Seq2[QueryPart, error] {
	return func(yield func(QueryPart, error) bool) {
		reply, request, err := c.queryReply(queries)
		if err != nil {
			yield(QueryPart{}, err)
			return
		}
		for message, err := range messages(ctx, c, "QueryBatch", request, v1.LedgerClient.QueryBatch, true) {
			if err != nil {
				yield(QueryPart{}, err)
				return
			}
			part, err := reply.take(ctx, message)
			if err != nil {
				yield(QueryPart{}, distrusted("QueryBatch", err))
				return
			}
			if !yield(part, nil) {
				return
			}
		}
		if reply.open > 0 {
			yield(QueryPart{}, distrust("QueryBatch", "answers are missing"))
		}
	}
}

// queryReply is the reply to a batch, as far as it has come.
type queryReply struct {
	client *Client
	// known is what the client knew before it asked.
	known known
	// log is the part that all proofs have in common.
	log    []byte
	times  queryTimes
	places []queryPlace
	// open counts the places that need another answer, and left the records that may still come.
	open, left int
}

// queryPlace is a key of a query.
type queryPlace struct {
	query, number int
	key           []byte
	// next is the version of the next answer, while one is open.
	next  Moment
	open  bool
	since Moment
	// left is the number of states that may still come.
	left uint32
}

func (c *Client) queryReply(queries []Query) (*queryReply, *v1.QueryBatchRequest, error) {
	reply := &queryReply{client: c, known: c.known()}
	request := &v1.QueryBatchRequest{WantProof: c.trust != nil}
	var asked []uint64
	for i := range queries {
		query := &queries[i]
		for _, moment := range []Moment{query.At, query.Since} {
			if moment.kind != momentTime {
				continue
			}
			if _, err := millis("QueryBatch", time.UnixMilli(int64(moment.value))); err != nil {
				return nil, nil, err
			}
			asked = append(asked, moment.value)
		}
		limit := query.Limit
		if limit == 0 {
			limit = math.MaxUint32
		}
		for number, key := range query.Keys {
			reply.places = append(reply.places, queryPlace{
				query: i, number: number, key: key, next: query.At, open: true, since: query.Since, left: limit,
			})
		}
		request.Queries = append(request.Queries, &v1.Query{
			Keys: query.Keys, At: query.At.message(), Since: query.Since.message(), Limit: query.Limit,
		})
	}
	reply.times = timesOf(asked)
	reply.open, reply.left = len(reply.places), len(reply.places)+queryStepsMax
	return reply, request, nil
}

// take judges the next message of the reply.
func (r *queryReply) take(ctx context.Context, message *v1.QueryBatchResponse) (QueryPart, error) {
	if len(message.Log) > 0 {
		if r.log != nil {
			return QueryPart{}, errors.New("a second log part")
		}
		r.log = message.Log
	}
	kinds := 0
	for _, is := range []bool{len(message.Times) > 0, len(message.Records) > 0, message.Failure != nil} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return QueryPart{}, errors.New("a part that is not of one kind")
	}
	if len(message.Times) > 0 {
		return r.takeTimes(ctx, message.Times)
	}
	expected, err := r.takePlaces(message.Places)
	if err != nil {
		return QueryPart{}, err
	}
	if message.Failure != nil {
		return r.fail(message.Places, message.Failure), nil
	}
	return r.takeRecords(ctx, message, expected)
}

// takeTimes takes the versions of times. Each must be asked for, and settled.
func (r *queryReply) takeTimes(ctx context.Context, told []*v1.QueryTime) (QueryPart, error) {
	part := QueryPart{Times: make([]QueryTime, 0, len(told))}
	for _, t := range told {
		version := t.GetVersion()
		if version.GetStamp() == nil {
			return QueryPart{}, errors.New("a time without a version")
		}
		var file []byte
		if r.client.trust != nil {
			file = verify.JoinLog(r.log, version.Proof)
			subject := verify.AboutTime(t.TimeMs)
			err := r.client.believe(ctx, r.known, file, subject, func(v *verify.Verified) error {
				if !agrees(version, v) {
					return errDisagree
				}
				return checkAge(v, r.known)
			})
			if err != nil {
				return QueryPart{}, err
			}
		}
		if !version.IsFinal || version.TimestampMs > t.TimeMs {
			return QueryPart{}, errors.New("a time that is not settled")
		}
		if err := r.times.tell(t.TimeMs, version.TimestampMs, version.Stamp.Version); err != nil {
			return QueryPart{}, err
		}
		part.Times = append(part.Times, QueryTime{Asked: timeOf(t.TimeMs), Version: versionTime(version, file)})
	}
	return part, nil
}

// takePlaces gives the versions that the answers about places must be of. A place that was taken is
// closed until its answer opens it again, so none occurs twice.
func (r *queryReply) takePlaces(places []uint32) ([]Moment, error) {
	if len(places) == 0 {
		return nil, errors.New("a part about no key")
	}
	// The list is no longer than that of the keys, however many places a coordinator names.
	var expected []Moment
	for _, at := range places {
		if uint64(at) >= uint64(len(r.places)) {
			return nil, errors.New("a key that was not asked for")
		}
		place := &r.places[at]
		if !place.open {
			return nil, errors.New("a second answer about a key")
		}
		expected, place.open = append(expected, place.next), false
	}
	return expected, nil
}

func (r *queryReply) fail(places []uint32, told *v1.QueryFailure) QueryPart {
	failure := &QueryFailure{Reason: Reason(printable(told.Reason)), Message: printable(told.Message)}
	part := QueryPart{Answers: make([]QueryAnswer, len(places))}
	for i, at := range places {
		place := &r.places[at]
		part.Answers[i] = QueryAnswer{Query: place.query, Key: place.number, Err: failure}
	}
	r.open -= len(places)
	return part
}

func (r *queryReply) takeRecords(
	ctx context.Context, message *v1.QueryBatchResponse, expected []Moment,
) (QueryPart, error) {
	places, count := message.Places, len(message.Places)
	switch {
	case len(message.Records) != count || len(message.UnchangedSince) != count:
		return QueryPart{}, errors.New("a different number of records than of keys")
	case count > r.left:
		return QueryPart{}, errors.New("too many answers")
	case message.ReadAt == nil:
		return QueryPart{}, errors.New("no version")
	}
	r.left -= count
	got := &BatchGot{ReadAt: stampOf(message.ReadAt), Records: make([]*Record, count)}
	ofHead := false
	for i, at := range places {
		if !bytes.Equal(message.Records[i].GetKey(), r.places[at].key) {
			return QueryPart{}, errors.New("a record of another key")
		}
		if expected[i].kind == momentNone {
			ofHead = true
			continue
		}
		if version, err := r.times.version(expected[i]); err != nil {
			return QueryPart{}, err
		} else if version != got.ReadAt.Version {
			return QueryPart{}, errors.New("an answer of another version")
		}
	}
	if err := r.believe(ctx, message, got, ofHead); err != nil {
		return QueryPart{}, err
	}
	part := QueryPart{Answers: make([]QueryAnswer, count), Proof: got.Proof}
	for i, at := range places {
		place, unchanged := &r.places[at], message.UnchangedSince[i]
		if err := r.goOn(place, unchanged); err != nil {
			return QueryPart{}, err
		}
		part.Answers[i] = QueryAnswer{
			Query: place.query, Key: place.number, Record: got.Records[i], ReadAt: got.ReadAt,
			UnchangedSince: unchanged, More: place.open,
		}
	}
	return part, nil
}

// believe takes the records of an answer from its proof, which must agree with all that the
// coordinator says. Without a trusted key, that is all there is.
func (r *queryReply) believe(
	ctx context.Context, message *v1.QueryBatchResponse, got *BatchGot, ofHead bool,
) error {
	var shown *verify.Query
	if r.client.trust != nil {
		got.Proof = verify.JoinLog(r.log, message.Proof)
		read := &Read{At: &got.ReadAt, AnyEpoch: true}
		if ofHead {
			read = nil
		}
		var err error
		if shown, err = r.client.checkKeys(ctx, r.known, message.Records, read, got); err != nil {
			return err
		}
	}
	for i, told := range message.Records {
		unchanged := message.UnchangedSince[i]
		if unchanged > got.ReadAt.Version {
			return errors.New("a key that did not change since a later version")
		}
		if shown == nil {
			if got.Records[i] = recordOf(told); told.Found && told.GetLastChanged().GetVersion() != unchanged {
				return errors.New("another version of the last change")
			}
			continue
		}
		answer, _ := shown.Answer(told.Key)
		if answer.UnchangedSince != unchanged || !repeats(told, got.Records[i]) {
			return errDisagree
		}
	}
	return nil
}

// repeats tells whether a coordinator's record is the proven one. Values that the proof has may be
// left out.
func repeats(told *v1.Record, shown *Record) bool {
	if shown == nil || !told.GetFound() {
		return shown == nil && !told.GetFound()
	}
	return stampOf(told.LastChanged) == shown.LastChanged &&
		(len(told.Value) == 0 || bytes.Equal(told.Value, shown.Value))
}

// goOn opens a place again if its walk goes on behind an answer, which shows that the key did not
// change since a version.
func (r *queryReply) goOn(place *queryPlace, unchanged uint64) error {
	place.left--
	if place.since.kind != momentNone && place.left > 0 {
		since, err := r.times.version(place.since)
		if err != nil {
			return err
		}
		// Versions go down with each step, so a walk ends.
		place.open, place.next = unchanged > since, AtVersion(unchanged-1)
	}
	if !place.open {
		r.open--
	}
	return nil
}

// queryTimes has the times that a batch names, in ascending order, with their versions as far as
// they are known.
type queryTimes []queriedTime

type queriedTime struct {
	ms, version uint64
	// told says that the coordinator has named the version for this very time.
	told, known bool
}

func timesOf(asked []uint64) queryTimes {
	slices.Sort(asked)
	asked = slices.Compact(asked)
	times := make(queryTimes, len(asked))
	for i, ms := range asked {
		times[i].ms = ms
	}
	return times
}

func (t queryTimes) find(ms uint64) (int, bool) {
	return slices.BinarySearchFunc(t, ms, func(time queriedTime, ms uint64) int { return cmp.Compare(time.ms, ms) })
}

// tell takes the version of a time, and gives it to all earlier times from that of its header on.
func (t queryTimes) tell(ms, from, version uint64) error {
	at, asked := t.find(ms)
	if !asked || t[at].told {
		return errors.New("a time that was not asked for, or that comes twice")
	}
	t[at].told = true
	for ; at >= 0 && t[at].ms >= from && !t[at].known; at-- {
		t[at].version, t[at].known = version, true
	}
	return nil
}

// version gives the version of a moment.
func (t queryTimes) version(moment Moment) (uint64, error) {
	if moment.kind == momentVersion {
		return moment.value, nil
	}
	at, asked := t.find(moment.value)
	if !asked || !t[at].known {
		return 0, errors.New("an answer before the version of its time")
	}
	return t[at].version, nil
}

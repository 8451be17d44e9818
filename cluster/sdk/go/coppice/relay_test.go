package coppice

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "coppice.dev/sdk/v1"
)

// relay is a coordinator that passes calls on to a ledger, and may change what comes back.
type relay struct {
	v1.UnimplementedLedgerServer
	mutex    sync.Mutex
	ledger   v1.LedgerClient
	endpoint string
	// calls counts the calls of each method.
	calls map[string]int

	onBatchGet func(*v1.BatchGetRequest, *v1.BatchGetResponse) error
	onCommit   func(*v1.CommitRequest, *v1.CommitResponse) error
	onStream   func(*v1.CommitStreamResponse)
	onRange    func([]*v1.RangeResponse) []*v1.RangeResponse
	onQueries  func([]*v1.QueryBatchResponse) ([]*v1.QueryBatchResponse, error)
	// afterQueries is called before a reply to queries ends.
	afterQueries func(context.Context)
	onCheckpoint func(*v1.GetCheckpointResponse) error
	// checkpointOf chooses the ledger that answers, by the size that is asked for.
	checkpointOf func(oldSize uint64) v1.LedgerClient
	onHeader     func(*v1.GetHeaderResponse)
	onHeads      func(*v1.WatchHeadsResponse) error
	onJournal    func(*v1.JournalResponse) error
	onAppend     func(*v1.AppendRequest, *v1.AppendResponse) error
	onDescribe   func(*v1.DescribeLedgerResponse)
	onMember     func(*v1.GetMemberResponse)
	onJournals   func(*v1.GetJournalsResponse)
	// onAsked sees the request as well, and may refuse it.
	onAsked    func(*v1.GetJournalsRequest, *v1.GetJournalsResponse) error
	onLineage  func(*v1.GetLineageResponse)
	onLedgers  func(*v1.ListLedgersResponse)
	onMembers  func(*v1.ListMembersResponse)
	onTime     func(*v1.TimeResponse)
	onInterval func(*v1.GetIntervalResponse)
	onErasure  func(*v1.ErasureStatusResponse)
	onHashes   func(*v1.GetLedgerHashesRequest, *v1.GetLedgerHashesResponse)
	onRecords  func(*v1.GetLedgerRecordsResponse)
	onVerdict  func(*v1.VerifyJournalResponse)
	// noJournals refuses all calls for journals, and noRecords those for records.
	noJournals, noRecords error
}

func startRelay(t testing.TB, l *ledger, security credentials.TransportCredentials) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{endpoint: listener.Addr().String(), calls: map[string]int{}}
	r.show(t, l)
	server := grpc.NewServer(
		grpc.Creds(security),
		grpc.MaxRecvMsgSize(answerBytesMax),
		grpc.MaxSendMsgSize(answerBytesMax),
	)
	v1.RegisterLedgerServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// show passes the next calls on to another ledger.
func (r *relay) show(t testing.TB, l *ledger) {
	t.Helper()
	address, err := parseEndpoint(l.Endpoint, false)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.ledger = v1.NewLedgerClient(connection)
}

func (r *relay) to(name string) v1.LedgerClient {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.calls[name]++
	return r.ledger
}

func (r *relay) count(name string) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.calls[name]
}

func (r *relay) BatchGet(ctx context.Context, request *v1.BatchGetRequest) (*v1.BatchGetResponse, error) {
	answer, err := r.to("BatchGet").BatchGet(ctx, request)
	if err == nil && r.onBatchGet != nil {
		err = r.onBatchGet(request, answer)
	}
	return answer, err
}

func (r *relay) Commit(ctx context.Context, request *v1.CommitRequest) (*v1.CommitResponse, error) {
	answer, err := r.to("Commit").Commit(ctx, request)
	if err == nil && r.onCommit != nil {
		err = r.onCommit(request, answer)
	}
	return answer, err
}

func (r *relay) OpenSession(ctx context.Context, request *v1.OpenSessionRequest) (*v1.OpenSessionResponse, error) {
	return r.to("OpenSession").OpenSession(ctx, request)
}

func (r *relay) GetCheckpoint(
	ctx context.Context,
	request *v1.GetCheckpointRequest,
) (*v1.GetCheckpointResponse, error) {
	ledger := r.to("GetCheckpoint")
	if r.checkpointOf != nil {
		ledger = r.checkpointOf(request.OldSize)
	}
	answer, err := ledger.GetCheckpoint(ctx, request)
	if err == nil && r.onCheckpoint != nil {
		err = r.onCheckpoint(answer)
	}
	return answer, err
}

func (r *relay) GetHeader(ctx context.Context, request *v1.GetHeaderRequest) (*v1.GetHeaderResponse, error) {
	answer, err := r.to("GetHeader").GetHeader(ctx, request)
	if err == nil && r.onHeader != nil {
		r.onHeader(answer)
	}
	return answer, err
}

func (r *relay) Append(ctx context.Context, request *v1.AppendRequest) (*v1.AppendResponse, error) {
	answer, err := r.to("Append").Append(ctx, request)
	if err == nil && r.onAppend != nil {
		err = r.onAppend(request, answer)
	}
	return answer, err
}

func (r *relay) DescribeLedger(
	ctx context.Context, request *v1.DescribeLedgerRequest,
) (*v1.DescribeLedgerResponse, error) {
	answer, err := r.to("DescribeLedger").DescribeLedger(ctx, request)
	if err == nil && r.onDescribe != nil {
		r.onDescribe(answer)
	}
	return answer, err
}

func (r *relay) GetMember(ctx context.Context, request *v1.GetMemberRequest) (*v1.GetMemberResponse, error) {
	answer, err := r.to("GetMember").GetMember(ctx, request)
	if err == nil && r.onMember != nil {
		r.onMember(answer)
	}
	return answer, err
}

func (r *relay) GetJournals(ctx context.Context, request *v1.GetJournalsRequest) (*v1.GetJournalsResponse, error) {
	if r.noJournals != nil {
		return nil, r.noJournals
	}
	answer, err := r.to("GetJournals").GetJournals(ctx, request)
	if err == nil && r.onJournals != nil {
		r.onJournals(answer)
	}
	if err == nil && r.onAsked != nil {
		err = r.onAsked(request, answer)
	}
	return answer, err
}

func (r *relay) GetLineage(ctx context.Context, request *v1.GetLineageRequest) (*v1.GetLineageResponse, error) {
	answer, err := r.to("GetLineage").GetLineage(ctx, request)
	if err == nil && r.onLineage != nil {
		r.onLineage(answer)
	}
	return answer, err
}

func (r *relay) Time(ctx context.Context, request *v1.TimeRequest) (*v1.TimeResponse, error) {
	// The ledgers of these tests have no witnesses.
	request.Cosigned = false
	answer, err := r.to("Time").Time(ctx, request)
	if err == nil && r.onTime != nil {
		r.onTime(answer)
	}
	return answer, err
}

func (r *relay) GetInterval(ctx context.Context, request *v1.GetIntervalRequest) (*v1.GetIntervalResponse, error) {
	request.Cosigned = false
	answer, err := r.to("GetInterval").GetInterval(ctx, request)
	if err == nil && r.onInterval != nil {
		r.onInterval(answer)
	}
	return answer, err
}

func (r *relay) ErasureStatus(
	ctx context.Context, request *v1.ErasureStatusRequest,
) (*v1.ErasureStatusResponse, error) {
	answer, err := r.to("ErasureStatus").ErasureStatus(ctx, request)
	if err == nil && r.onErasure != nil {
		r.onErasure(answer)
	}
	return answer, err
}

func (r *relay) GetLedgerHashes(
	ctx context.Context, request *v1.GetLedgerHashesRequest,
) (*v1.GetLedgerHashesResponse, error) {
	answer, err := r.to("GetLedgerHashes").GetLedgerHashes(ctx, request)
	if err == nil && r.onHashes != nil {
		r.onHashes(request, answer)
	}
	return answer, err
}

func (r *relay) GetLedgerRecords(
	ctx context.Context, request *v1.GetLedgerRecordsRequest,
) (*v1.GetLedgerRecordsResponse, error) {
	if r.noRecords != nil {
		return nil, r.noRecords
	}
	answer, err := r.to("GetLedgerRecords").GetLedgerRecords(ctx, request)
	if err == nil && r.onRecords != nil {
		r.onRecords(answer)
	}
	return answer, err
}

func (r *relay) VerifyJournal(
	ctx context.Context, request *v1.VerifyJournalRequest,
) (*v1.VerifyJournalResponse, error) {
	answer, err := r.to("VerifyJournal").VerifyJournal(ctx, request)
	if err == nil && r.onVerdict != nil {
		r.onVerdict(answer)
	}
	return answer, err
}

func (r *relay) History(request *v1.HistoryRequest, out grpc.ServerStreamingServer[v1.HistoryResponse]) error {
	stream, err := r.to("History").History(out.Context(), request)
	if err != nil {
		return err
	}
	return pass(stream, out, nil)
}

func (r *relay) ListLedgers(
	request *v1.ListLedgersRequest, out grpc.ServerStreamingServer[v1.ListLedgersResponse],
) error {
	stream, err := r.to("ListLedgers").ListLedgers(out.Context(), request)
	if err != nil {
		return err
	}
	return pass(stream, out, r.onLedgers)
}

func (r *relay) ListMembers(
	request *v1.ListMembersRequest, out grpc.ServerStreamingServer[v1.ListMembersResponse],
) error {
	stream, err := r.to("ListMembers").ListMembers(out.Context(), request)
	if err != nil {
		return err
	}
	return pass(stream, out, r.onMembers)
}

// pass sends the messages of a stream on, after a change.
func pass[M any](in grpc.ServerStreamingClient[M], out grpc.ServerStreamingServer[M], change func(*M)) error {
	for {
		message, err := in.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if change != nil {
			change(message)
		}
		if err := out.Send(message); err != nil {
			return err
		}
	}
}

func (r *relay) Range(request *v1.RangeRequest, out grpc.ServerStreamingServer[v1.RangeResponse]) error {
	stream, err := r.to("Range").Range(out.Context(), request)
	if err != nil {
		return err
	}
	var all []*v1.RangeResponse
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		all = append(all, message)
	}
	if r.onRange != nil {
		all = r.onRange(all)
	}
	for _, message := range all {
		if err := out.Send(message); err != nil {
			return err
		}
	}
	return nil
}

// queries asks the ledger a batch, and takes the whole reply.
func (r *relay) queries(ctx context.Context, request *v1.QueryBatchRequest) (all []*v1.QueryBatchResponse, err error) {
	stream, err := r.to("QueryBatch").QueryBatch(ctx, request)
	if err != nil {
		return nil, err
	}
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, message)
	}
}

func (r *relay) QueryBatch(request *v1.QueryBatchRequest, out grpc.ServerStreamingServer[v1.QueryBatchResponse]) error {
	all, err := r.queries(out.Context(), request)
	if err != nil {
		return err
	}
	if r.onQueries != nil {
		all, err = r.onQueries(all)
	}
	for _, message := range all {
		if err := out.Send(message); err != nil {
			return err
		}
	}
	if r.afterQueries != nil {
		r.afterQueries(out.Context())
	}
	return err
}

func (r *relay) WatchHeads(request *v1.WatchHeadsRequest, out grpc.ServerStreamingServer[v1.WatchHeadsResponse]) error {
	stream, err := r.to("WatchHeads").WatchHeads(out.Context(), request)
	if err != nil {
		return err
	}
	// A stream may outlive the call of the test that changes the hook.
	change := r.onHeads
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil && change != nil {
			err = change(message)
		}
		if err == nil {
			err = out.Send(message)
		}
		if err != nil {
			return err
		}
	}
}

func (r *relay) Journal(request *v1.JournalRequest, out grpc.ServerStreamingServer[v1.JournalResponse]) error {
	stream, err := r.to("Journal").Journal(out.Context(), request)
	if err != nil {
		return err
	}
	// A stream may outlive the call of the test that changes the hook.
	change := r.onJournal
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil && change != nil {
			err = change(message)
		}
		if err == nil {
			err = out.Send(message)
		}
		if err != nil {
			return err
		}
	}
}

func (r *relay) CommitStream(in grpc.BidiStreamingServer[v1.CommitStreamRequest, v1.CommitStreamResponse]) error {
	stream, err := r.to("CommitStream").CommitStream(in.Context())
	if err != nil {
		return err
	}
	go func() {
		for {
			request, err := in.Recv()
			if err != nil || stream.Send(request) != nil {
				_ = stream.CloseSend()
				return
			}
		}
	}()
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if r.onStream != nil {
			r.onStream(answer)
		}
		if err := in.Send(answer); err != nil {
			return err
		}
	}
}

// broken is what a client sees if a connection breaks.
var broken = status.Error(codes.Unavailable, "the connection broke")

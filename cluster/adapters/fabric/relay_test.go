package fabric

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "coppice.dev/sdk/v1"
)

const relayBytesMax = 64 << 20

// relay is a coordinator that passes calls on to a ledger, and may change or lose what comes back.
type relay struct {
	v1.UnimplementedLedgerServer
	ledger   v1.LedgerClient
	endpoint string
	mutex    sync.Mutex
	// commits counts the commits that came, and lost those whose answer did not go back.
	commits, lost int
	// refuse and lose choose commits by their number: those that do not reach the ledger, and those
	// whose answers are lost.
	refuse, lose func(number int) bool
	// beforeBatchGet may hold a read back.
	beforeBatchGet func()
	onBatchGet     func(*v1.BatchGetRequest, *v1.BatchGetResponse)
	onRange        func(*v1.RangeResponse)
	// onHeads may hold back or alter what the stream shows, and refuse it.
	onHeads func(*v1.WatchHeadsResponse) error
	// reads counts the calls of BatchGet.
	reads int
}

func startRelay(t testing.TB, l *ledger) *relay {
	t.Helper()
	connection := must(grpc.NewClient(
		l.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(relayBytesMax)),
	))(t)
	t.Cleanup(func() { _ = connection.Close() })
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	r := &relay{ledger: v1.NewLedgerClient(connection), endpoint: listener.Addr().String()}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(relayBytesMax), grpc.MaxSendMsgSize(relayBytesMax))
	v1.RegisterLedgerServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// set changes what the relay does.
func (r *relay) set(change func()) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	change()
}

// together holds reads back until so many are under way. The result tells whether they ever were.
func (r *relay) together(t testing.TB, count int) func() bool {
	ctx, all := limited(t), make(chan struct{})
	var under atomic.Int64
	r.set(func() {
		r.beforeBatchGet = func() {
			if under.Add(1) == int64(count) {
				close(all)
			}
			select {
			case <-all:
			case <-ctx.Done():
			}
		}
	})
	return func() bool {
		select {
		case <-all:
			return true
		default:
			return false
		}
	}
}

func (r *relay) Commit(ctx context.Context, request *v1.CommitRequest) (*v1.CommitResponse, error) {
	gone := status.Error(codes.Unavailable, "the connection is gone")
	r.mutex.Lock()
	r.commits++
	number, refuse, lose := r.commits, r.refuse, r.lose
	r.mutex.Unlock()
	if refuse != nil && refuse(number) {
		return nil, gone
	}
	answer, err := r.ledger.Commit(ctx, request)
	if err == nil && lose != nil && lose(number) {
		r.set(func() { r.lost++ })
		return nil, gone
	}
	return answer, err
}

func (r *relay) BatchGet(
	ctx context.Context,
	request *v1.BatchGetRequest,
) (*v1.BatchGetResponse, error) {
	r.mutex.Lock()
	before := r.beforeBatchGet
	r.mutex.Unlock()
	if before != nil {
		before()
	}
	answer, err := r.ledger.BatchGet(ctx, request)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.reads++
	if err == nil && r.onBatchGet != nil {
		r.onBatchGet(request, answer)
	}
	return answer, err
}

func (r *relay) Range(
	request *v1.RangeRequest,
	out grpc.ServerStreamingServer[v1.RangeResponse],
) error {
	in, err := r.ledger.Range(out.Context(), request)
	if err != nil {
		return err
	}
	for {
		message, err := in.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		r.mutex.Lock()
		if r.onRange != nil {
			r.onRange(message)
		}
		r.mutex.Unlock()
		if err := out.Send(message); err != nil {
			return err
		}
	}
}

func (r *relay) WatchHeads(
	request *v1.WatchHeadsRequest,
	out grpc.ServerStreamingServer[v1.WatchHeadsResponse],
) error {
	in, err := r.ledger.WatchHeads(out.Context(), request)
	if err != nil {
		return err
	}
	for {
		message, err := in.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		r.mutex.Lock()
		onHeads := r.onHeads
		r.mutex.Unlock()
		if onHeads != nil {
			if err := onHeads(message); err != nil {
				return err
			}
		}
		if err := out.Send(message); err != nil {
			return err
		}
	}
}

func (r *relay) Head(ctx context.Context, request *v1.HeadRequest) (*v1.HeadResponse, error) {
	return r.ledger.Head(ctx, request)
}

func (r *relay) OpenSession(
	ctx context.Context,
	request *v1.OpenSessionRequest,
) (*v1.OpenSessionResponse, error) {
	return r.ledger.OpenSession(ctx, request)
}

func (r *relay) GetHeader(
	ctx context.Context,
	request *v1.GetHeaderRequest,
) (*v1.GetHeaderResponse, error) {
	return r.ledger.GetHeader(ctx, request)
}

func (r *relay) GetCheckpoint(
	ctx context.Context, request *v1.GetCheckpointRequest,
) (*v1.GetCheckpointResponse, error) {
	return r.ledger.GetCheckpoint(ctx, request)
}

package state

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/coppicetest"
	v1 "coppice.dev/sdk/v1"
)

const messageMax = 96 << 20

// devLedger is a `coppice dev` of a test.
type devLedger struct{ *coppicetest.Ledger }

func startDev(t testing.TB, directory string, arguments ...string) *devLedger {
	t.Helper()
	return &devLedger{coppicetest.Start(t, directory, append(arguments, "--replicas", "1")...)}
}

// client gives a verifying client that calls an endpoint, which may be a relay before the ledger.
func (l *devLedger) client(t testing.TB, endpoint string) *coppice.Client {
	t.Helper()
	key := l.Key(t)
	client := must(coppice.New(coppice.Options{
		Endpoints: []string{endpoint}, Trust: &key, Patience: 200 * time.Millisecond,
	}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// must gives a result, or ends the test.
func must[T any](result T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}

// relay is a coordinator that passes calls on to a ledger, and may change what comes back.
type relay struct {
	v1.UnimplementedLedgerServer
	endpoint string

	mutex  sync.Mutex
	ledger v1.LedgerClient
	// onHeads may change a message of the stream, and tells whether to pass it on.
	onHeads      func(*v1.WatchHeadsResponse) bool
	onBatchGet   func(*v1.BatchGetRequest, *v1.BatchGetResponse)
	onCheckpoint func(*v1.GetCheckpointResponse)
	onHead       func(*v1.HeadResponse)
	// cut breaks the streams that are open, and is closed then.
	cut chan struct{}
}

func startRelay(t testing.TB, l *devLedger) *relay {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	r := &relay{endpoint: listener.Addr().String(), cut: make(chan struct{})}
	r.show(t, l)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax))
	v1.RegisterLedgerServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// show passes the next calls on to another ledger, and breaks the streams.
func (r *relay) show(t testing.TB, l *devLedger) {
	t.Helper()
	connection := must(grpc.NewClient(l.Address(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageMax))))(t)
	t.Cleanup(func() { _ = connection.Close() })
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.ledger = v1.NewLedgerClient(connection)
	close(r.cut)
	r.cut = make(chan struct{})
}

// lies lets a test change what the relay does.
func (r *relay) lies(change func(*relay)) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	change(r)
}

// through calls the ledger, and lets a test change the answer.
func through[Q, A any](
	ctx context.Context, r *relay, request Q,
	call func(v1.LedgerClient, context.Context, Q, ...grpc.CallOption) (A, error), change func(A),
) (A, error) {
	r.mutex.Lock()
	ledger := r.ledger
	r.mutex.Unlock()
	answer, err := call(ledger, ctx, request)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err == nil {
		change(answer)
	}
	return answer, err
}

func (r *relay) BatchGet(ctx context.Context, q *v1.BatchGetRequest) (*v1.BatchGetResponse, error) {
	return through(ctx, r, q, v1.LedgerClient.BatchGet, func(a *v1.BatchGetResponse) {
		if r.onBatchGet != nil {
			r.onBatchGet(q, a)
		}
	})
}

func (r *relay) GetCheckpoint(
	ctx context.Context, q *v1.GetCheckpointRequest,
) (*v1.GetCheckpointResponse, error) {
	return through(ctx, r, q, v1.LedgerClient.GetCheckpoint, func(a *v1.GetCheckpointResponse) {
		if r.onCheckpoint != nil {
			r.onCheckpoint(a)
		}
	})
}

func (r *relay) Head(ctx context.Context, q *v1.HeadRequest) (*v1.HeadResponse, error) {
	return through(ctx, r, q, v1.LedgerClient.Head, func(a *v1.HeadResponse) {
		if r.onHead != nil {
			r.onHead(a)
		}
	})
}

func (r *relay) WatchHeads(
	request *v1.WatchHeadsRequest, out grpc.ServerStreamingServer[v1.WatchHeadsResponse],
) error {
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	r.mutex.Lock()
	ledger, cut := r.ledger, r.cut
	r.mutex.Unlock()
	go func() {
		select {
		case <-cut:
			cancel()
		case <-ctx.Done():
		}
	}()
	stream, err := ledger.WatchHeads(ctx, request)
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		r.mutex.Lock()
		pass := r.onHeads == nil || r.onHeads(message)
		r.mutex.Unlock()
		if pass {
			if err := out.Send(message); err != nil {
				return err
			}
		}
	}
}

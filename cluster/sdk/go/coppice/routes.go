package coppice

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	v1 "coppice.dev/sdk/v1"
)

const (
	restMin          = 100 * time.Millisecond
	restMax          = 10 * time.Second
	connectTimeout   = 2 * time.Second
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// route is one coordinator. It rests after a failure, and longer after each in a row.
type route struct {
	address    string
	connection *grpc.ClientConn
	ledger     v1.LedgerClient
	rest       time.Duration
	restsUntil time.Time
}

// routes are the coordinators that a client knows. The one that answered last is asked, until it
// fails.
type routes struct {
	mutex       sync.Mutex
	routes      []*route
	at          int
	credentials credentials.TransportCredentials
	secure      bool
	closed      bool
}

func newRoutes(options *Options) (*routes, error) {
	r := &routes{credentials: insecure.NewCredentials(), secure: options.TLS != nil}
	if options.TLS != nil {
		config, err := options.TLS.config()
		if err != nil {
			return nil, err
		}
		r.credentials = credentials.NewTLS(config)
	}
	for _, endpoint := range options.Endpoints {
		if err := r.learn(endpoint); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

// learn adds a coordinator, unless it is known or there are enough.
func (r *routes) learn(endpoint string) error {
	address, err := parseEndpoint(endpoint, r.secure)
	if err != nil {
		return err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.closed || len(r.routes) == endpointsMax {
		return nil
	}
	for _, known := range r.routes {
		if known.address == address {
			return nil
		}
	}
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = restMin, restMax
	connection, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(r.credentials),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(answerBytesMax), grpc.MaxCallSendMsgSize(answerBytesMax), grpc.ForceCodecV2(boundedCodec{}),
		),
		grpc.WithStatsHandler(sentHandler{}),
		// Repetitions are for this package, which knows what may be repeated.
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return err
	}
	r.routes = append(r.routes, &route{address: address, connection: connection, ledger: v1.NewLedgerClient(connection)})
	return nil
}

// pick chooses the coordinator to ask now. While all rest, it is the one whose rest ends first.
func (r *routes) pick() *route {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	now := time.Now()
	if r.routes[r.at].restsUntil.After(now) {
		best := r.at
		for offset := range r.routes {
			at := (r.at + offset) % len(r.routes)
			if !r.routes[at].restsUntil.After(now) {
				best = at
				break
			}
			if r.routes[at].restsUntil.Before(r.routes[best].restsUntil) {
				best = at
			}
		}
		r.at = best
	}
	return r.routes[r.at]
}

func (r *routes) succeeded(picked *route) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	picked.rest, picked.restsUntil = 0, time.Time{}
}

func (r *routes) failed(picked *route) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	picked.rest = min(max(2*picked.rest, restMin), restMax)
	picked.restsUntil = time.Now().Add(spread(picked.rest))
}

func (r *routes) several() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.routes) > 1
}

func (r *routes) addresses() (addresses []string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, route := range r.routes {
		addresses = append(addresses, route.address)
	}
	return addresses
}

func (r *routes) isClosed() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.closed
}

func (r *routes) close() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.closed = true
	var all []error
	for _, route := range r.routes {
		all = append(all, route.connection.Close())
	}
	return errors.Join(all...)
}

// spread gives a time between half of another and all of it, so that clients that failed together
// come back apart.
func spread(about time.Duration) time.Duration {
	return about/2 + time.Duration(rand.Float64()*float64(about/2))
}

// sentMark tells whether an attempt sent anything. Only what was never sent certainly did nothing.
type sentMark struct{ sent atomic.Bool }

type sentKey struct{}

// sentHandler sets the mark of an attempt when its headers leave.
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, left := event.(*stats.OutHeader); left {
		if mark, ok := ctx.Value(sentKey{}).(*sentMark); ok {
			mark.sent.Store(true)
		}
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}

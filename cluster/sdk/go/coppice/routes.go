package coppice

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	v1 "coppice.dev/sdk/v1"
)

const (
	restMin = 100 * time.Millisecond
	restMax = 10 * time.Second
	// connectMax is the longest time between two attempts to connect, while calls want a connection.
	connectMax       = 400 * time.Millisecond
	connectTimeout   = 2 * time.Second
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	windowBytes      = 2 << 20
)

// route is one coordinator. It rests after a failure, and longer after each in a row.
type route struct {
	address    string
	link       *link
	rest       time.Duration
	restsUntil time.Time
}

// link is the connection to a coordinator under settings of TLS. Once they have changed, another
// link takes its place, and this one closes when its last call has ended.
type link struct {
	connection *grpc.ClientConn
	ledger     v1.LedgerClient
	config     *tls.Config
	mutex      sync.Mutex
	users      int
	retired    bool
}

// begin counts a call, which keeps the link open.
func (l *link) begin() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.users++
}

func (l *link) end() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.users--
	l.closeUnused()
}

func (l *link) retire() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.retired = true
	l.closeUnused()
}

// closeUnused closes a link that no call uses any more. It does not wait: a call tells of its end
// from within the connection.
func (l *link) closeUnused() {
	if l.retired && l.users == 0 {
		go func() { _ = l.connection.Close() }()
	}
}

// rest sleeps before the next attempt, and wakes when a broken connection is there again.
func (l *link) rest(ctx context.Context, pause time.Duration) error {
	if l.connection.GetState() != connectivity.TransientFailure {
		return sleep(ctx, pause)
	}
	limited, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	l.connection.WaitForStateChange(limited, connectivity.TransientFailure)
	return contextError(ctx)
}

// picked is a coordinator with the link of one attempt, which release gives back.
type picked struct {
	*route
	link *link
}

func (p picked) release() { p.link.end() }

// routes are the coordinators that a client knows. The one that answered last is asked, until it
// fails.
type routes struct {
	mutex  sync.Mutex
	routes []*route
	at     int
	// tls is nil for plain connections.
	tls    *liveTLS
	closed bool
}

func newRoutes(options *Options) (*routes, error) {
	r := &routes{}
	if options.TLS != nil {
		var err error
		if r.tls, err = newLiveTLS(*options.TLS); err != nil {
			return nil, err
		}
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
	address, err := parseEndpoint(endpoint, r.tls != nil)
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
	opened, err := r.open(address)
	if err != nil {
		return err
	}
	r.routes = append(r.routes, &route{address: address, link: opened})
	return nil
}

// open makes a link under the settings of now. It connects with its first call.
func (r *routes) open(address string) (*link, error) {
	opened := &link{config: r.tls.now()}
	security := insecure.NewCredentials()
	if opened.config != nil {
		security = credentials.NewTLS(opened.config)
	}
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = restMin, connectMax
	connection, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(security),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// A proof of many keys fits a window, so that a long way costs it one round trip.
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(2*windowBytes),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(answerBytesMax), grpc.MaxCallSendMsgSize(answerBytesMax), grpc.ForceCodecV2(boundedCodec{}),
		),
		grpc.WithStatsHandler(callHandler{opened}),
		// Repetitions are for this package, which knows what may be repeated.
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, err
	}
	opened.connection, opened.ledger = connection, v1.NewLedgerClient(connection)
	return opened, nil
}

// pick chooses the coordinator to ask now. While all rest, it is the one whose rest ends first.
func (r *routes) pick() picked {
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
	route := r.routes[r.at]
	r.renew(route)
	route.link.begin()
	return picked{route: route, link: route.link}
}

// renew opens another link if the settings of TLS have changed. The lock is held.
func (r *routes) renew(route *route) {
	if r.closed || route.link.config == r.tls.now() {
		return
	}
	if opened, err := r.open(route.address); err == nil {
		route.link.retire()
		route.link = opened
		// Another certificate may do better.
		route.rest, route.restsUntil = 0, time.Time{}
	}
}

func (r *routes) succeeded(route *route) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	route.rest, route.restsUntil = 0, time.Time{}
}

func (r *routes) failed(route *route) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	route.rest = min(max(2*route.rest, restMin), restMax)
	route.restsUntil = time.Now().Add(spread(route.rest))
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
		all = append(all, route.link.connection.Close())
	}
	return errors.Join(all...)
}

// spread gives a time between half of another and all of it, so that clients that failed together
// come back apart.
func spread(about time.Duration) time.Duration {
	return about/2 + time.Duration(rand.Float64()*float64(about/2))
}

// sentMark tells whether an attempt sent anything. Only a request that was never sent certainly did
// nothing.
type sentMark struct{ sent atomic.Bool }

type sentKey struct{}

// callHandler sets the mark of an attempt when its headers leave, and counts the calls of a link.
type callHandler struct{ link *link }

func (callHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (h callHandler) HandleRPC(ctx context.Context, event stats.RPCStats) {
	switch event.(type) {
	case *stats.Begin:
		h.link.begin()
	case *stats.End:
		h.link.end()
	case *stats.OutHeader:
		if mark, ok := ctx.Value(sentKey{}).(*sentMark); ok {
			mark.sent.Store(true)
		}
	}
}

func (callHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (callHandler) HandleConn(context.Context, stats.ConnStats) {}

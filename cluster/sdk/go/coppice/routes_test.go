package coppice

import (
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"coppice.dev/sdk/coppicetest"
)

func TestARestEndsWhenTheConnectionIsThereAgain(t *testing.T) {
	l := sharedLedger(t)
	wire := must(coppicetest.NewWire(l.Address(), 0))(t)
	t.Cleanup(func() { _ = wire.Close() })
	key := l.key(t)
	client := must(New(Options{Endpoints: []string{wire.Address}, Trust: key, Patience: time.Nanosecond}))(t)
	t.Cleanup(func() { _ = client.Close() })
	must(client.Head(limited(t)))(t)
	wire.Cut()
	p := client.routes.pick()
	defer p.release()
	for p.link.connection.GetState() != connectivity.TransientFailure {
		_, _ = client.Head(limited(t))
	}
	rested := make(chan error, 1)
	go func() { rested <- p.link.rest(limited(t), time.Hour) }()
	wire.Mend()
	// The context of the rest would end it with an error.
	if err := <-rested; err != nil {
		t.Fatal(err)
	}
	must(client.Head(limited(t)))(t)
}

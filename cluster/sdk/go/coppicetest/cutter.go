package coppicetest

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// Cutter passes connections on to a ledger, and breaks them in the middle of answers.
type Cutter struct {
	// Endpoint is the address that clients call, as a URL.
	Endpoint string
	// Cuts counts the connections that were broken.
	Cuts atomic.Int64

	to    string
	after func(cuts int64) int64
}

// StartCutter runs a cutter until the test ends. From the number of connections broken so far,
// `after` gives the number of bytes of answers after which a new one breaks. With 0 it holds.
func StartCutter(t testing.TB, l *Ledger, after func(cuts int64) int64) *Cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c := &Cutter{Endpoint: "http://" + listener.Addr().String(), to: l.Address(), after: after}
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go c.pass(in)
		}
	}()
	return c
}

func (c *Cutter) pass(in net.Conn) {
	out, err := net.Dial("tcp", c.to)
	if err != nil {
		_ = in.Close()
		return
	}
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	if after := c.after(c.Cuts.Load()); after == 0 {
		_, _ = io.Copy(in, out)
	} else if n, _ := io.CopyN(in, out, after); n == after {
		c.Cuts.Add(1)
	}
	_, _ = in.Close(), out.Close()
}

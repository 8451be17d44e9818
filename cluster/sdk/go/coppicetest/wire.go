package coppicetest

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// Wire passes connections on to a server that seems to be further away than it is, and can be cut.
type Wire struct {
	// Address is where clients connect to.
	Address string

	to       string
	half     time.Duration
	mutex    sync.Mutex
	listener net.Listener
	// ends are those of the connections that are open.
	ends map[net.Conn]bool
	cut  bool
}

// NewWire makes a wire to an address. It holds back all bytes for half of a round trip in each
// direction.
func NewWire(to string, roundTrip time.Duration) (*Wire, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{
		Address: listener.Addr().String(), to: to, half: roundTrip / 2,
		listener: listener, ends: make(map[net.Conn]bool),
	}
	go w.accept()
	return w, nil
}

func (w *Wire) accept() {
	for {
		in, err := w.listener.Accept()
		if err != nil {
			return
		}
		if !w.keep(in) {
			continue
		}
		out, err := net.Dial("tcp", w.to)
		if err != nil {
			w.drop(in)
			continue
		}
		if w.keep(out) {
			go w.pass(in, out)
			go w.pass(out, in)
		} else {
			w.drop(in)
		}
	}
}

// keep notes an end of a connection, unless the wire is cut.
func (w *Wire) keep(end net.Conn) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.cut {
		_ = end.Close()
		return false
	}
	w.ends[end] = true
	return true
}

func (w *Wire) drop(end net.Conn) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.ends, end)
	_ = end.Close()
}

// Cut breaks all connections. New ones break at once until Mend.
func (w *Wire) Cut() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.cut = true
	for end := range w.ends {
		_ = end.Close()
	}
}

// Mend lets new connections pass.
func (w *Wire) Mend() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.cut = false
}

// Close breaks all connections for good.
func (w *Wire) Close() error {
	w.Cut()
	return w.listener.Close()
}

// pass hands bytes on after a delay. Bytes that come meanwhile wait at the same time, and not one
// after the other.
func (w *Wire) pass(from, to net.Conn) {
	type part struct {
		bytes []byte
		due   time.Time
	}
	parts := make(chan part, 1024)
	go func() {
		defer w.drop(to)
		for p := range parts {
			sleepUntil(p.due)
			if _, err := to.Write(p.bytes); err != nil {
				w.drop(from)
			}
		}
	}()
	defer w.drop(from)
	defer close(parts)
	for {
		buffer := make([]byte, 64<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			parts <- part{buffer[:n], time.Now().Add(w.half)}
		}
		if err != nil {
			return
		}
	}
}

// sleepUntil sleeps on a timer of the kernel. Those of Go wake on whole milliseconds while nothing
// else goes on.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		spec := syscall.NsecToTimespec(left.Nanoseconds())
		// A sleep that a signal ends is begun again by the loop.
		_ = syscall.Nanosleep(&spec, nil)
	}
}

package coppicetest

import (
	"io"
	"net"
	"testing"
	"time"
)

// echo runs a server that gives back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(connection, connection); _ = connection.Close() }()
		}
	}()
	return listener.Addr().String()
}

// ask sends a byte and waits for it. It gives the time that took.
func ask(connection net.Conn) (time.Duration, error) {
	began := time.Now()
	_ = connection.SetDeadline(began.Add(10 * time.Second))
	if _, err := connection.Write([]byte{7}); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(connection, make([]byte, 1))
	return time.Since(began), err
}

func TestAWireIsAsLongAsItSays(t *testing.T) {
	const roundTrip = 20 * time.Millisecond
	wire, err := NewWire(echo(t), roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = wire.Close() })
	connection, err := net.Dial("tcp", wire.Address)
	if err != nil {
		t.Fatal(err)
	}
	least := time.Hour
	for range 10 {
		took, err := ask(connection)
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, took)
	}
	if least < roundTrip || least > 5*roundTrip {
		t.Fatalf("a round trip of %v takes %v", roundTrip, least)
	}
}

func TestACutWireBreaksOldAndNewConnectionsUntilItIsMended(t *testing.T) {
	wire, err := NewWire(echo(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = wire.Close() })
	try := func() (net.Conn, error) {
		connection, err := net.Dial("tcp", wire.Address)
		if err != nil {
			return nil, err
		}
		_, err = ask(connection)
		return connection, err
	}
	old, err := try()
	if err != nil {
		t.Fatal(err)
	}
	wire.Cut()
	if _, err := ask(old); err == nil {
		t.Fatal("a connection outlives the cut")
	}
	if _, err := try(); err == nil {
		t.Fatal("a connection begins while the wire is cut")
	}
	wire.Mend()
	if _, err := try(); err != nil {
		t.Fatal(err)
	}
}

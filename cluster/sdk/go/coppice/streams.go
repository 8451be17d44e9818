package coppice

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "coppice.dev/sdk/v1"
)

// errEnded is the error of a stream that ended before it should.
var errEnded = status.Error(codes.Unavailable, "the stream ended early")

// method is a method of the service that answers with a stream.
type method[Request, Message any] func(
	v1.LedgerClient, context.Context, *Request, ...grpc.CallOption,
) (grpc.ServerStreamingClient[Message], error)

// opened is a stream with its first message, which shows that the call was not refused.
type opened[Message any] struct {
	calls grpc.ServerStreamingClient[Message]
	first *Message
	// ended tells that the stream has no message at all.
	ended bool
}

// open begins a stream, and waits for its first message. With a limit, that must come in time.
func open[Request, Message any](
	ctx context.Context,
	c *Client,
	name string,
	request *Request,
	call method[Request, Message],
	limited bool,
) (opened[Message], context.CancelFunc, error) {
	return attempts(ctx, c, name, safe, false, func(ctx context.Context, ledger v1.LedgerClient) (opened[Message], error) {
		ctx, cancel := context.WithCancel(ctx)
		calls, err := call(ledger, ctx, request)
		if err != nil {
			cancel()
			return opened[Message]{}, err
		}
		first, err := receive(calls, cancel, c.attempt, limited)
		if errors.Is(err, io.EOF) {
			return opened[Message]{calls: calls, ended: true}, nil
		}
		if err != nil {
			cancel()
		}
		return opened[Message]{calls: calls, first: first}, err
	})
}

// receive waits for the next message. With a limit, the stream is ended if none comes in time.
func receive[Message any](
	calls grpc.ServerStreamingClient[Message],
	end context.CancelFunc,
	limit time.Duration,
	limited bool,
) (*Message, error) {
	if !limited {
		return calls.Recv()
	}
	var late atomic.Bool
	timer := time.AfterFunc(limit, func() { late.Store(true); end() })
	defer timer.Stop()
	message, err := calls.Recv()
	if err != nil && late.Load() {
		err = status.Error(codes.DeadlineExceeded, "nothing came for "+limit.String())
	}
	return message, err
}

// messages gives the messages of a stream. Without a limit it waits for the next one as long as the
// context lives.
func messages[Request, Message any](
	ctx context.Context,
	c *Client,
	name string,
	request *Request,
	call method[Request, Message],
	limited bool,
) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, _, err := open(ctx, c, name, request, call, limited)
		if err != nil {
			yield(nil, err)
			return
		}
		for message := stream.first; !stream.ended; {
			if !yield(message, nil) {
				return
			}
			if message, err = receive(stream.calls, cancel, c.attempt, limited); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				yield(nil, streamError(ctx, name, err))
				return
			}
		}
	}
}

// collect takes all messages of a stream. If it breaks, the call has failed.
func collect[Request, Message any](
	ctx context.Context,
	c *Client,
	name string,
	request *Request,
	call method[Request, Message],
	take func(*Message) error,
) error {
	for message, err := range messages(ctx, c, name, request, call, true) {
		if err != nil {
			return err
		}
		if err := take(message); err != nil {
			return distrust(name, err.Error())
		}
	}
	return nil
}

package coppice

import (
	"context"
	"time"

	"google.golang.org/grpc"

	v1 "coppice.dev/sdk/v1"
)

const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 500 * time.Millisecond
	// slowMin is how long the first attempt waits for one of several coordinators. Each attempt waits
	// twice as long as the one before.
	slowMin = 2 * time.Second
)

// repeat says whether a call may be repeated although it may have had its effect.
type repeat int

const (
	// safe is for reads, and for batches with a number.
	safe repeat = iota
	// unsafe is for calls that are repeated only if they certainly did nothing.
	unsafe
)

// invoke calls a method of the ledger until it succeeds, is refused for good, or patience ends.
func invoke[Request, Answer any](
	ctx context.Context, c *Client, name string, again repeat, request *Request,
	call func(v1.LedgerClient, context.Context, *Request, ...grpc.CallOption) (*Answer, error),
) (*Answer, error) {
	answer, _, err := attempts(
		ctx,
		c,
		name,
		again,
		true,
		func(ctx context.Context, ledger v1.LedgerClient) (*Answer, error) {
			return call(ledger, ctx, request, grpc.MaxCallRecvMsgSize(bytesMax(name)))
		},
	)
	return answer, err
}

// attempts repeats a call. Without a limit, the attempt's context lives until the caller ends it by
// the function that comes with the answer, for streams.
func attempts[Answer any](
	ctx context.Context, c *Client, name string, again repeat, limited bool,
	attempt func(context.Context, v1.LedgerClient) (Answer, error),
) (answer Answer, end context.CancelFunc, err error) {
	until := time.Now().Add(c.patience)
	pause, unknown := pauseMin, false
	for count := 1; ; count++ {
		picked := c.routes.pick()
		mark := &sentMark{}
		attemptContext, cancel := context.WithCancel(context.WithValue(ctx, sentKey{}, mark))
		if limited {
			cancel()
			attemptContext, cancel = context.WithTimeout(context.WithValue(ctx, sentKey{}, mark), c.limit(again, count))
		}
		answer, err := attempt(attemptContext, picked.link.ledger)
		picked.release()
		if err == nil {
			c.routes.succeeded(picked.route)
			if limited {
				cancel()
			}
			return answer, cancel, nil
		}
		cancel()
		refused := refusalOf(err)
		nothingDone := !mark.sent.Load() || refused.reason == NotLeader ||
			refused.kind == kindExhausted && refused.reason != ""
		failed := &Error{
			Call: name, Reason: refused.reason, Code: refused.code, Message: refused.message, Endpoint: picked.address,
			Attempts: count, OutcomeUnknown: unknown || !nothingDone && refused.kind != kindFinal,
		}
		if refused.reason == RolledBack || refused.reason == SessionMismatch {
			// These refusals concern the batch's number, so they hold for all attempts.
			failed.OutcomeUnknown = false
		}
		if failed.cause = contextError(ctx); failed.cause != nil {
			failed.OutcomeUnknown = unknown || !nothingDone
			return answer, nil, failed
		}
		if c.routes.isClosed() {
			return answer, nil, failed
		}
		switch refused.kind {
		case kindFinal:
			c.routes.succeeded(picked.route)
			return answer, nil, failed
		case kindUnavailable:
			c.routes.failed(picked.route)
		}
		unknown = unknown || !nothingDone
		if time.Now().Add(pause).After(until) || again == unsafe && !nothingDone {
			return answer, nil, failed
		}
		if failed.cause = picked.link.rest(ctx, spread(pause)); failed.cause != nil {
			return answer, nil, failed
		}
		pause = min(2*pause, pauseMax)
	}
}

// limit is the time of one attempt.
func (c *Client) limit(again repeat, count int) time.Duration {
	if again == safe && c.routes.several() {
		return min(c.attempt, slowMin<<min(count-1, 10))
	}
	return c.attempt
}

// sleep waits, and gives the error of the context if that ends first.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// streamError makes an error of a stream that broke behind its first message.
func streamError(ctx context.Context, name string, err error) *Error {
	refused := refusalOf(err)
	return &Error{
		Call: name, Reason: refused.reason, Code: refused.code, Message: refused.message, Attempts: 1,
		Endpoint: "its stream", cause: contextError(ctx),
	}
}

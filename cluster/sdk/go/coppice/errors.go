package coppice

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is the machine-readable cause of a refusal. It is a sentinel: errors.Is(err, Pruned) finds
// it in the errors of this package.
type Reason string

func (r Reason) Error() string { return string(r) }

// The reasons of a ledger.
const (
	InvalidArgument Reason = "INVALID_ARGUMENT"
	LimitExceeded   Reason = "LIMIT_EXCEEDED"
	Reserved        Reason = "RESERVED"
	BadSignature    Reason = "BAD_SIGNATURE"
	WrongCluster    Reason = "WRONG_CLUSTER"
	Denied          Reason = "DENIED"
	NotAMember      Reason = "NOT_A_MEMBER"
	RoleMissing     Reason = "ROLE_MISSING"
	OrderIncomplete Reason = "ORDER_INCOMPLETE"
	NotFound        Reason = "NOT_FOUND"
	// PurgedJournal is the reason why JournalPage, LedgerJournals, LedgerOrder, JournalsBelow and
	// VerifyJournal do not give a journal that a purge has taken. If a key is trusted, the ledger is
	// proven to be purged above the journal's number, and to have no leaf of it at head. Otherwise the
	// journal was withheld, and the error is ErrUntrusted.
	PurgedJournal      Reason = "PURGED_JOURNAL"
	PreconditionFailed Reason = "PRECONDITION_FAILED"
	Lane               Reason = "LANE"
	StaleView          Reason = "STALE_VIEW"
	LedgerChanged      Reason = "LEDGER_CHANGED"
	ClueChanged        Reason = "CLUE_CHANGED"
	NotPossible        Reason = "NOT_POSSIBLE"
	NotYet             Reason = "NOT_YET"
	Pruned             Reason = "PRUNED"
	RolledBack         Reason = "ROLLED_BACK"
	Pinned             Reason = "PINNED"
	LedgerFloor        Reason = "LEDGER_FLOOR"
	StageLost          Reason = "STAGE_LOST"
	RequestExpired     Reason = "REQUEST_EXPIRED"
	SessionMismatch    Reason = "SESSION_MISMATCH"
	UnknownSession     Reason = "UNKNOWN_SESSION"
	ResourceExhausted  Reason = "RESOURCE_EXHAUSTED"
	QuotaExceeded      Reason = "QUOTA_EXCEEDED"
	DiskFull           Reason = "DISK_FULL"
	NotLeader          Reason = "NOT_LEADER"
	Unavailable        Reason = "UNAVAILABLE"
	StateMissing       Reason = "STATE_MISSING"
	FencedForRollback  Reason = "FENCED_FOR_ROLLBACK"
	MissedAdmin        Reason = "MISSED_ADMIN"
	StaleTerm          Reason = "STALE_TERM"
	BaseMismatch       Reason = "BASE_MISMATCH"
	Corrupted          Reason = "CORRUPTED"
	Internal           Reason = "INTERNAL"
)

// kind says what a caller can do about an error.
type kind int

const (
	kindFinal kind = iota
	kindExhausted
	kindUnavailable
)

// kinds has the reasons after which another attempt may succeed.
var kinds = map[Reason]kind{
	ResourceExhausted: kindExhausted, DiskFull: kindExhausted,
	NotLeader: kindUnavailable, Unavailable: kindUnavailable, StateMissing: kindUnavailable,
	FencedForRollback: kindUnavailable, MissedAdmin: kindUnavailable, StaleTerm: kindUnavailable,
	BaseMismatch: kindUnavailable,
}

// ErrUntrusted is found by errors.Is if an answer is not proven, or its proof is of something else.
// Where a proof does not hold, errors.As finds the *verify.Error with its step.
var ErrUntrusted = errors.New("coppice: the answer is not proven")

// Error is a call that failed. errors.Is finds its Reason, and context.DeadlineExceeded or
// context.Canceled if the caller's context ended.
type Error struct {
	// Call is the name of the method of the ledger's service.
	Call string
	// Reason is empty if the server gave none.
	Reason Reason
	// Code is the gRPC code.
	Code codes.Code
	// Message has the server's words.
	Message string
	// Endpoint is the one of the last attempt, and Attempts counts all.
	Endpoint string
	Attempts int
	// OutcomeUnknown tells that the request may have had its effect, or may still have it.
	OutcomeUnknown bool
	// cause is an error of the caller's context, or nil.
	cause error
}

func (e *Error) Error() string {
	reason := string(e.Reason)
	if reason == "" {
		reason = e.Code.String()
	}
	times := ""
	if e.Attempts > 1 {
		times = fmt.Sprintf(" after %d attempts", e.Attempts)
	}
	return fmt.Sprintf("coppice: %s at %s%s: %s (%s)", e.Call, e.Endpoint, times, e.Message, reason)
}

// Is compares the reason.
func (e *Error) Is(target error) bool {
	reason, is := target.(Reason)
	return is && reason != "" && reason == e.Reason
}

// Unwrap gives the error of the caller's context, if that ended the call.
func (e *Error) Unwrap() error { return e.cause }

// TooLarge tells whether an answer is larger than a coordinator may send. Then a question for less
// may succeed. The error is that of the coordinator's limits or of its transport.
func TooLarge(err error) bool {
	var failed *Error
	return errors.As(err, &failed) &&
		(failed.Reason == LimitExceeded || failed.Reason == "" && failed.Code == codes.OutOfRange)
}

// untrusted is an answer that is not believed.
type untrusted struct {
	call string
	err  error
	// written tells that the call may have written something all the same.
	written bool
}

func (u *untrusted) Error() string {
	return "coppice: " + u.call + ": the answer is not proven: " + u.err.Error()
}
func (u *untrusted) Unwrap() []error { return []error{ErrUntrusted, u.err} }

func distrust(call, why string) error { return &untrusted{call: call, err: errors.New(why)} }

// ForkError tells that the ledger has shown two logs. Keep all of it: the two notes are signed, and
// nobody but a holder of the ledger's keys can have made them.
type ForkError struct {
	// Known is the checkpoint that was believed, and Shown the one that contradicts it.
	Known, Shown []byte
	// Proof is the file that came with the second one.
	Proof []byte
	Why   string
}

func (f *ForkError) Error() string {
	return "coppice: the log was forked, keep both checkpoints: " + f.Why
}

// Unwrap lets errors.Is find ErrUntrusted.
func (f *ForkError) Unwrap() error { return ErrUntrusted }

// OutcomeUnknown tells whether the request behind an error may have had its effect. A batch of a
// session is then sent again under its number, and the draft of an author is appended again.
func OutcomeUnknown(err error) bool {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.OutcomeUnknown
	}
	var lie *untrusted
	if errors.As(err, &lie) {
		return lie.written
	}
	return errors.Is(err, ErrUntrusted)
}

// domain is the domain of the ledger's ErrorInfo.
const domain = "coppice.v1"

// refusal is a status, taken apart.
type refusal struct {
	reason  Reason
	code    codes.Code
	message string
	kind    kind
}

func refusalOf(err error) refusal {
	s, isStatus := status.FromError(err)
	if !isStatus {
		s = status.FromContextError(err)
	}
	r := refusal{code: s.Code(), message: printable(s.Message())}
	for _, detail := range s.Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is && info.Domain == domain {
			r.reason = Reason(info.Reason)
		}
	}
	if r.reason != "" {
		r.kind = kinds[r.reason]
		return r
	}
	switch r.code {
	case codes.ResourceExhausted:
		r.kind = kindExhausted
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Unknown, codes.Aborted, codes.Internal:
		// The transport reports some broken connections as internal errors. Internal errors of the ledger
		// have a reason.
		r.kind = kindUnavailable
	}
	return r
}

// messageMax bounds what is kept of a server's words.
const messageMax = 2048

// printable replaces control characters, which a terminal would obey, and cuts long texts.
func printable(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, text[:min(len(text), messageMax)])
}

// contextError gives the error of a context that ended, or nil.
func contextError(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

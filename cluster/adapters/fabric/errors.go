package fabric

import (
	"errors"

	"google.golang.org/grpc/codes"

	"coppice.dev/sdk/coppice"
)

// The errors of this package, for errors.Is. Errors of the ledger are those of the SDK, among them
// coppice.ErrUntrusted.
var (
	// ErrUnreachable tells that the ledger did not answer within the time limit of a start.
	ErrUnreachable = errors.New("fabric: the ledger can't be reached")
	// ErrMoved tells that another writer has changed the database, or a rollback has undone a change.
	// The database takes no more writes. Start the peer again, after the other writer has ended.
	ErrMoved = errors.New("fabric: another writer has changed the database")
	// ErrUnfinished tells that a large block was decided, but is not in place yet. GetDBHandle and
	// the next write finish it.
	ErrUnfinished = errors.New("fabric: a large block is not in place yet")
	// ErrLimit tells that a key or a value is larger than a ledger takes.
	ErrLimit = errors.New("fabric: a key or a value is too large")
	// ErrDirectory tells that the directory of the state belongs to another ledger or prefix, or that
	// the ledger was rolled back to a time before it. Delete the directory to build the state again.
	ErrDirectory = errors.New("fabric: the directory is not of this ledger")
	// ErrClosed tells that the provider is closed.
	ErrClosed = errors.New("fabric: the provider is closed")
	// ErrNoQueries tells that a ledger has no JSON queries, as goleveldb has none.
	ErrNoQueries = errors.New("fabric: JSON queries are not supported")
	// errCorrupt is in errors of records that this package has not written.
	errCorrupt = errors.New("fabric: a record is malformed")
)

// passing tells whether a later attempt may succeed.
func passing(err error) bool {
	var failed *coppice.Error
	if !errors.As(err, &failed) {
		return false
	}
	switch failed.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}

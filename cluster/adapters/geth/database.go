package geth

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/state/snapshot"
	"github.com/ethereum/go-ethereum/triedb"
)

// Database is a state.Database whose tries are go-ethereum's own, and whose flat state is that of a
// ledger. Roots are Ethereum's.
type Database struct {
	*state.MPTDatabase
	ledger *State
}

var _ state.Database = (*Database)(nil)

// NewDatabase makes a database of tries and a ledger. Commits have the time limit of the State for
// each block.
func NewDatabase(tries *triedb.Database, ledger *State) *Database {
	return &Database{MPTDatabase: state.NewMPTDatabase(tries, nil), ledger: ledger}
}

// Reader gives the state of a root. One that the ledger does not have is read from the tries: it is
// of a side chain, or was reorganized away.
func (d *Database) Reader(root common.Hash) (state.Reader, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.ledger.options.Timeout)
	defer cancel()
	view, err := d.ledger.At(ctx, root)
	if errors.Is(err, ErrUnknownRoot) {
		return d.MPTDatabase.Reader(root)
	}
	if err != nil {
		return nil, err
	}
	return view, nil
}

// WithSnapshot adds a tree of snapshots, for roots that the ledger does not have.
func (d *Database) WithSnapshot(tree *snapshot.Tree) state.Database {
	d.MPTDatabase.WithSnapshot(tree)
	return d
}

// Commit writes a block to the tries, and then to the ledger (State.Apply). If the ledger fails,
// the tries have nodes that no block needs, and the block can be committed again.
func (d *Database) Commit(update *state.StateUpdate) error {
	if update.Empty() {
		return nil
	}
	if err := d.MPTDatabase.Commit(update); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.ledger.options.Timeout)
	defer cancel()
	if err := d.ledger.Apply(ctx, UpdateOf(update)); err != nil {
		return fmt.Errorf("geth: block %d: %w", update.BlockNumber, err)
	}
	return nil
}

package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"coppice.dev/sdk/coppice"
)

// markerName is the file in the directory of the state that names the generation.
const markerName = "coppice-generation"

// markerBytesMax bounds what is read of the file.
const markerBytesMax = 128

// generations is the key of the record that counts the generations of a prefix.
func generations(prefix string) []byte { return []byte(prefix + "generations") }

// findGeneration gives the generation that a directory names. If it names none, a new one begins. A
// crash between the two leaves a number without records.
func (p *provider) findGeneration(ctx context.Context, directory string) (uint64, error) {
	if directory == "" {
		return 0, nil
	}
	path := filepath.Join(directory, markerName)
	known, err := readMarker(path)
	if err != nil {
		return 0, err
	}
	last, record, err := p.lastGeneration(ctx)
	if err != nil {
		return 0, err
	}
	if known > last {
		return 0, fmt.Errorf(
			"%w: %s names generation %d, the ledger has had %d",
			ErrDirectory,
			path,
			known,
			last,
		)
	}
	if known > 0 {
		return known, nil
	}
	next := last + 1
	batch := new(coppice.Batch).Put(generations(p.options.Prefix), strconv.AppendUint(nil, next, 10))
	if record == nil {
		batch.IfAbsent(generations(p.options.Prefix))
	} else {
		batch.IfChanged(record.Key, record.LastChanged)
	}
	// If the answer is lost, the number may be taken. The next attempt takes the one after it.
	if _, err := p.client.Commit(ctx, batch); err != nil {
		return 0, err
	}
	return next, writeMarker(path, next)
}

// lastGeneration reads the newest generation that was given out, 0 if none was.
func (p *provider) lastGeneration(ctx context.Context) (uint64, *coppice.Record, error) {
	got, err := p.client.Get(ctx, generations(p.options.Prefix), nil)
	if err != nil || got.Record == nil {
		return 0, nil, err
	}
	last, err := strconv.ParseUint(string(got.Record.Value), 10, 63)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: the number of generations: %w", errCorrupt, err)
	}
	return last, got.Record, nil
}

// readMarker gives the number in a file, 0 if there is no file.
func readMarker(path string) (uint64, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, markerBytesMax))
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("%w: %s has no number of a generation", ErrDirectory, path)
	}
	return number, nil
}

// writeMarker makes the file durable as a whole, or not at all.
func writeMarker(path string, number uint64) error {
	directory := filepath.Dir(path)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(directory, markerName+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = fmt.Fprintf(file, "%d\n", number)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	parent, err := os.Open(directory)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// Package log is a log of entries on Tessera's POSIX driver, with the answer that our receipts are
// compared with: each append is answered when a signed checkpoint covers the entry, with the
// entry's inclusion proof.
package log

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	formats "github.com/transparency-dev/formats/log"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
)

const (
	// origin names the log in its checkpoints and its key.
	origin = "tessera.bench/log"
	// head is the first line of an answer (the format of C2SP's tlog-proof).
	head = "c2sp.org/tlog-proof@v1"
	// entryBytesMax is the longest entry that the server reads.
	entryBytesMax = 1 << 16
	// hashesMax is the longest proof of a log with 2^64 entries.
	hashesMax = 64
)

// Settings of the log. Those that the comparison uses are in [Fast].
type Settings struct {
	// BatchSize and BatchAge are the entries and the time after which a batch is integrated.
	BatchSize uint
	BatchAge  time.Duration
	// Checkpoints is the time between checkpoints, of which the driver has a least one.
	Checkpoints time.Duration
	// Poll is the time between looks for a new checkpoint.
	Poll time.Duration
}

// Fast is the best of what was tried: checkpoints as often as the driver allows, and batches that
// end after 50 ms. Each batch costs a dozen syncs, so with many clients larger and later ones
// append up to twice as many entries as batches of a tile after 5 ms. With 64 clients the time
// between checkpoints is the limit. Entries are not compared with former ones (no "antispam"),
// which costs nearly half of the rate by Tessera's own figures.
var Fast = Settings{BatchSize: 4096, BatchAge: 50 * time.Millisecond, Checkpoints: 100 * time.Millisecond, Poll: 2 * time.Millisecond}

// A Server appends entries.
type Server struct {
	// Key is the key by which clients verify checkpoints.
	Key      string
	appender *tessera.Appender
	awaiter  *tessera.PublicationAwaiter
	reader   tessera.LogReader

	// proofs makes the proofs of the newest checkpoint that an append was answered with; it keeps
	// the tiles that it has read.
	mutex      sync.Mutex
	proofs     *client.ProofBuilder
	checkpoint []byte
}

// New opens a log in a directory, with a new key.
func New(ctx context.Context, directory string, settings Settings) (*Server, error) {
	secret, public, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return nil, err
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		return nil, err
	}
	driver, err := posix.New(ctx, posix.Config{Path: directory})
	if err != nil {
		return nil, err
	}
	options := tessera.NewAppendOptions().
		WithCheckpointSigner(signer).
		WithCheckpointInterval(settings.Checkpoints).
		WithBatching(settings.BatchSize, settings.BatchAge)
	appender, _, reader, err := tessera.NewAppender(ctx, driver, options)
	if err != nil {
		return nil, err
	}
	awaiter := tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, settings.Poll)
	return &Server{Key: public, appender: appender, awaiter: awaiter, reader: reader}, nil
}

// ServeHTTP appends the body of a request, and answers with its proof.
func (server *Server) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, entryBytesMax))
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := server.append(request.Context(), data)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	// A client that is gone needs no answer.
	_, _ = writer.Write(answer)
}

func (server *Server) append(ctx context.Context, data []byte) ([]byte, error) {
	index, checkpoint, err := server.awaiter.Await(ctx, server.appender.Add(ctx, tessera.NewEntry(data)))
	if err != nil {
		return nil, err
	}
	hashes, err := server.prove(ctx, index.Index, checkpoint)
	if err != nil {
		return nil, err
	}
	answer := fmt.Appendf(nil, "%s\nindex %d\n", head, index.Index)
	for _, hash := range hashes {
		answer = fmt.Appendf(answer, "%s\n", base64.StdEncoding.EncodeToString(hash))
	}
	return append(append(answer, '\n'), checkpoint...), nil
}

func (server *Server) prove(ctx context.Context, index uint64, checkpoint []byte) ([][]byte, error) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if !bytes.Equal(server.checkpoint, checkpoint) {
		var parsed formats.Checkpoint
		if _, err := parsed.Unmarshal(checkpoint); err != nil {
			return nil, err
		}
		proofs, err := client.NewProofBuilder(ctx, parsed.Size, server.reader.ReadTile)
		if err != nil {
			return nil, err
		}
		server.proofs, server.checkpoint = proofs, checkpoint
	}
	return server.proofs.InclusionProof(ctx, index)
}

// Verify checks that an answer proves an entry's inclusion under a checkpoint signed with this key.
func Verify(verifier note.Verifier, entry, answer []byte) error {
	top, checkpoint, found := strings.Cut(string(answer), "\n\n")
	lines := strings.Split(top, "\n")
	if !found || len(lines) < 2 || len(lines) > 2+hashesMax || lines[0] != head {
		return errors.New("the answer is no proof")
	}
	text, found := strings.CutPrefix(lines[1], "index ")
	index, err := strconv.ParseUint(text, 10, 64)
	if !found || err != nil {
		return errors.New("the answer names no index")
	}
	hashes := make([][]byte, 0, len(lines)-2)
	for _, line := range lines[2:] {
		hash, err := base64.StdEncoding.Strict().DecodeString(line)
		if err != nil {
			return err
		}
		hashes = append(hashes, hash)
	}
	signed, _, _, err := formats.ParseCheckpoint([]byte(checkpoint), origin, verifier)
	if err != nil {
		return err
	}
	leaf := rfc6962.DefaultHasher.HashLeaf(entry)
	return proof.VerifyInclusion(rfc6962.DefaultHasher, index, signed.Size, leaf, hashes, signed.Hash)
}

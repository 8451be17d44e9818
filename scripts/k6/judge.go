package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"go.k6.io/k6/cmd/state"

	"coppice.dev/sdk/verify"
)

const (
	// bodyBytesMax is the largest post that is accepted.
	bodyBytesMax = 64 << 20
	// checkpointsMax is the number of checkpoints that are remembered, those of the last posts.
	checkpointsMax = 1 << 16
)

// judgeCommand is `k6 x judge`. It checks answers about journals, as `coppice-bench judge` checks
// those about keys. Options, replies and output are the same. It serves until SIGTERM or SIGINT.
func judgeCommand(*state.GlobalState) *cobra.Command {
	var key, listen, evidence string
	command := &cobra.Command{
		Use:   "judge",
		Short: "Check answers about ledgers of members against their proofs",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			judge, err := newJudge(key, evidence)
			if err != nil {
				return err
			}
			return judge.serve(listen)
		},
	}
	command.Flags().StringVar(&key, "key", "", "the cluster's public key, or @ and a file that holds it")
	command.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "the address to listen at; port 0 takes a free one")
	command.Flags().StringVar(&evidence, "evidence", "", "the file for the first post that failed")
	_ = command.MarkFlagRequired("key")
	return command
}

// judge has the cluster's key, and the counts.
type judge struct {
	key      verify.VKey
	evidence string
	mutex    sync.Mutex
	counts   counts
	// roots have the root of the log at each size that a proof has shown, and sizes their order.
	roots map[uint64]verify.Digest
	sizes []uint64
}

type counts struct {
	Event    string `json:"event"`
	Reads    uint64 `json:"reads"`
	Commits  uint64 `json:"commits"`
	Unproven uint64 `json:"unproven"`
	Bad      uint64 `json:"bad"`
	FirstBad string `json:"first_bad"`
}

func newJudge(key, evidence string) (*judge, error) {
	if path, isFile := strings.CutPrefix(key, "@"); isFile {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		key = string(text)
	}
	trusted, err := verify.ParseVKey(strings.TrimSpace(key))
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	counts := counts{Event: "counts"}
	return &judge{key: trusted, evidence: evidence, counts: counts, roots: map[uint64]verify.Digest{}}, nil
}

func (j *judge) serve(listen string) error {
	stop, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer end()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: j.routes()}
	go func() {
		<-stop.Done()
		// Answers what it was asked before.
		_ = server.Shutdown(context.Background())
	}()
	fmt.Printf("{\"event\":\"ready\",\"address\":%q}\n", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(j.counts); err != nil {
		return err
	}
	if j.counts.Bad > 0 {
		return fmt.Errorf("%d answers are not to be believed; the first: %s", j.counts.Bad, j.counts.FirstBad)
	}
	return nil
}

func (j *judge) routes() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /append", j.route(&j.counts.Commits, j.checkAppend))
	routes.HandleFunc("POST /journals", j.route(&j.counts.Reads, j.checkJournals))
	routes.HandleFunc("POST /lineage", j.route(&j.counts.Reads, j.checkLineage))
	return routes
}

// route replies with 204 if the proof holds and proves exactly the answer. If not, it replies with
// 422 and the reason.
func (j *judge) route(good *uint64, check func([]byte) (*verify.Verified, error)) http.HandlerFunc {
	return func(reply http.ResponseWriter, asked *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(reply, asked.Body, bodyBytesMax))
		var shown *verify.Verified
		if err == nil {
			shown, err = check(body)
		}
		j.mutex.Lock()
		defer j.mutex.Unlock()
		if err == nil {
			err = j.note(shown.Checkpoint)
		}
		if err == nil {
			*good++
			reply.WriteHeader(http.StatusNoContent)
			return
		}
		j.counts.Bad++
		fmt.Fprintln(os.Stderr, "k6 x judge: not to be believed:", err)
		if j.counts.Bad == 1 {
			j.counts.FirstBad = err.Error()
			j.keep(body)
		}
		http.Error(reply, err.Error(), http.StatusUnprocessableEntity)
	}
}

// note checks that the log has one root at each size.
func (j *judge) note(checkpoint verify.Checkpoint) error {
	if root, known := j.roots[checkpoint.Size]; known {
		if root != checkpoint.Root {
			return fmt.Errorf("the log has two roots of %d entries", checkpoint.Size)
		}
		return nil
	}
	j.roots[checkpoint.Size] = checkpoint.Root
	j.sizes = append(j.sizes, checkpoint.Size)
	if len(j.sizes) > checkpointsMax {
		delete(j.roots, j.sizes[0])
		j.sizes = j.sizes[1:]
	}
	return nil
}

func (j *judge) keep(body []byte) {
	if j.evidence == "" {
		return
	}
	if err := os.WriteFile(j.evidence, body, 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "k6 x judge: the evidence could not be kept:", err)
	}
}

// proven verifies a proof file, which must be an answer to a question.
func (j *judge) proven(file []byte, about verify.Subject) (*verify.Verified, error) {
	shown, err := verify.Verify(file, j.key, nil)
	if err != nil {
		return nil, err
	}
	return shown, shown.Answers(verify.Question{Subject: about})
}

var errDisagree = errors.New("the answer and its proof disagree")

// appendPost is a request, and its answer.
type appendPost struct {
	Signed    []byte `json:"signed"`
	Signature []byte `json:"signature"`
	Items     []item `json:"items"`
	Ledger    []byte `json:"ledger"`
	FirstJSN  uint64 `json:"firstJsn,string"`
	Stamp     stamp  `json:"stamp"`
	Receipt   []byte `json:"receipt"`
}

// checkAppend demands a receipt with all journals as they were signed, at the place of the answer.
func (j *judge) checkAppend(body []byte) (*verify.Verified, error) {
	post, err := read[appendPost](body)
	if err != nil {
		return nil, err
	}
	signed, err := verify.DecodeSigned(post.Signed)
	if err != nil {
		return nil, err
	}
	shown, err := j.proven(post.Receipt, verify.AboutRequest(sha256.Sum256(post.Signed)))
	if err != nil {
		return nil, err
	}
	journals, founds := shown.Journals.Journals, signed.Ledger == verify.LedgerID{}
	if !bytes.Equal(shown.Journals.Ledger[:], post.Ledger) || !founds && signed.Ledger != shown.Journals.Ledger ||
		len(journals) != len(post.Items) || journals[0].Leaf.JSN != post.FirstJSN || !post.Stamp.is(journals[0].Leaf.Stamp) {
		return nil, errors.New("the receipt is for other journals than the answer")
	}
	for at, journal := range journals {
		if !bytes.Equal(journal.Signed, post.Signed) || !bytes.Equal(journal.Leaf.Signature[:], post.Signature) ||
			journal.Leaf.Commitment != sha256.Sum256(post.Items[at].Envelope) {
			return nil, errors.New("the receipt does not show the journals as they were signed")
		}
	}
	return shown, nil
}

// readPost is a question about journals, and its answer.
type readPost struct {
	Ledger []byte `json:"ledger"`
	// WantPayload and WantRequest are of the question.
	WantPayload bool      `json:"wantPayload"`
	WantRequest bool      `json:"wantRequest"`
	Journals    []journal `json:"journals"`
	Proof       []byte    `json:"proof"`
}

// checkTold compares the journals of an answer with those of its proof. Orders to occult are not
// possible in the ledger of a load test, so content that is missing was withheld.
func (p *readPost) checkTold(shown []verify.ProvenJournal) error {
	if len(p.Journals) != len(shown) {
		return errDisagree
	}
	for at, told := range p.Journals {
		leaf := shown[at].Leaf
		if told.JSN != leaf.JSN || verify.LeafHash(told.Leaf) != leaf.Hash() {
			return errDisagree
		}
		if p.WantRequest && shown[at].Signed == nil {
			return errors.New("the proof does not show what the author signed")
		}
		if !p.WantPayload {
			continue
		}
		if told.OccultedBy != nil || shown[at].Envelope == nil || leaf.Commitment != sha256.Sum256(told.Envelope) {
			return errors.New("a payload is withheld, or is another one than the proof's")
		}
	}
	return nil
}

// journalsPost is a page of journals. KnownSize is 0 if no earlier state is known.
type journalsPost struct {
	readPost
	FromJSN   uint64 `json:"fromJsn,string"`
	Limit     uint64 `json:"limit"`
	KnownSize uint64 `json:"knownSize,string"`
	KnownRoot []byte `json:"knownRoot"`
	Size      uint64 `json:"size,string"`
	Root      []byte `json:"root"`
}

func (j *judge) checkJournals(body []byte) (*verify.Verified, error) {
	post, err := read[journalsPost](body)
	if err != nil {
		return nil, err
	}
	ledger, err := ledgerID(post.Ledger)
	if err != nil {
		return nil, err
	}
	if post.Size <= post.FromJSN || uint64(len(post.Journals)) != min(post.Size-post.FromJSN, post.Limit) {
		return nil, errors.New("more or fewer journals than were asked for")
	}
	about := verify.AboutJournals{Ledger: ledger, KnownSize: post.KnownSize}
	copy(about.KnownRoot[:], post.KnownRoot)
	for at := range post.Journals {
		about.Numbers = append(about.Numbers, post.FromJSN+uint64(at))
	}
	shown, err := j.proven(post.Proof, about)
	if err != nil {
		return nil, err
	}
	if shown.Journals.Size != post.Size || !bytes.Equal(shown.Journals.Root[:], post.Root) {
		return nil, errDisagree
	}
	return shown, post.checkTold(shown.Journals.Journals)
}

// lineagePost is a lineage. Newest is 0 if all of it was asked for.
type lineagePost struct {
	readPost
	Clue   []byte `json:"clue"`
	Newest uint64 `json:"newest"`
	Count  uint64 `json:"count,string"`
	ReadAt stamp  `json:"readAt"`
}

func (j *judge) checkLineage(body []byte) (*verify.Verified, error) {
	post, err := read[lineagePost](body)
	if err != nil {
		return nil, err
	}
	ledger, err := ledgerID(post.Ledger)
	if err != nil {
		return nil, err
	}
	about := verify.AboutLineage{Ledger: ledger, Clue: verify.ClueHash(ledger, post.Clue)}
	if post.Newest > 0 {
		about.Newest = &post.Newest
	}
	shown, err := j.proven(post.Proof, about)
	if err != nil {
		return nil, err
	}
	if shown.Lineage.Count != post.Count || !post.ReadAt.is(shown.Header.Stamp()) {
		return nil, errDisagree
	}
	return shown, post.checkTold(shown.Lineage.Journals)
}

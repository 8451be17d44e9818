// Command tessera-drive puts load on a log of Tessera.
//
// An append waits until a checkpoint covers its entry, and verifies the checkpoint's signature and
// the entry's inclusion proof. An entry is a key with its value. Tessera has no other reads, and a
// request appends one entry.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"coppice.dev/loadtest/drive"
	"coppice.dev/loadtest/tessera/log"
	"golang.org/x/mod/sumdb/note"
)

var keyFile = flag.String("key", "", "file with the log's public key")

// answerBytesMax is the longest answer that a client reads.
const answerBytesMax = 1 << 16

type client struct {
	http     *http.Client
	url      string
	verifier note.Verifier
}

func (client client) Write(ctx context.Context, keys, values [][]byte) error {
	if len(keys) != 1 {
		return errors.New("a request appends one entry")
	}
	entry := slices.Concat(keys[0], values[0])
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, client.url, bytes.NewReader(entry))
	if err != nil {
		return err
	}
	response, err := client.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, answer)
	}
	return log.Verify(client.verifier, entry, answer)
}

func (client client) Read(context.Context, [][]byte) error {
	return errors.New("a log has no keys to read")
}

func main() {
	drive.Main("tessera", func(_ context.Context, options drive.Options, _ int) (drive.Client, error) {
		text, err := os.ReadFile(*keyFile)
		if err != nil {
			return nil, err
		}
		verifier, err := note.NewVerifier(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, err
		}
		// A transport of its own is a connection of its own.
		transport := &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}
		return client{&http.Client{Transport: transport}, "http://" + options.Endpoints[0] + "/", verifier}, nil
	})
}

package log

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/note"
)

func serve(t *testing.T) (*httptest.Server, note.Verifier) {
	t.Helper()
	log, err := New(t.Context(), t.TempDir(), Fast)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(log)
	t.Cleanup(server.Close)
	verifier, err := note.NewVerifier(log.Key)
	if err != nil {
		t.Fatal(err)
	}
	return server, verifier
}

func add(t *testing.T, server *httptest.Server, entry []byte) []byte {
	t.Helper()
	response, err := http.Post(server.URL, "application/octet-stream", bytes.NewReader(entry))
	if err != nil {
		t.Error(err)
		return nil
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Error(response.Status, string(answer), err)
	}
	return answer
}

func TestEachOfManyAppendsIsAnsweredWithItsProof(t *testing.T) {
	server, verifier := serve(t)
	var done sync.WaitGroup
	for number := range 300 {
		done.Go(func() {
			entry := fmt.Appendf(nil, "entry %d", number)
			if err := Verify(verifier, entry, add(t, server, entry)); err != nil {
				t.Error(number, err)
			}
		})
	}
	done.Wait()
}

func TestAnAnswerWithAnyWrongByteIsRefused(t *testing.T) {
	server, verifier := serve(t)
	// A log of one entry has an empty proof.
	add(t, server, []byte("an entry before"))
	entry := []byte("an entry")
	answer := add(t, server, entry)
	if err := Verify(verifier, entry, answer); err != nil {
		t.Fatal(err)
	}
	if err := Verify(verifier, []byte("another entry"), answer); err == nil {
		t.Error("the proof of another entry is accepted")
	}
	for place := range answer {
		wrong := bytes.Clone(answer)
		// The lowest bits of the last letter of a signature mean nothing.
		wrong[place] ^= 0x40
		if err := Verify(verifier, entry, wrong); err == nil {
			t.Errorf("byte %d of %q can be changed", place, answer)
		}
	}
}

func TestTheKeyOfAnotherLogIsRefused(t *testing.T) {
	server, _ := serve(t)
	_, other := serve(t)
	entry := []byte("an entry")
	if err := Verify(other, entry, add(t, server, entry)); err == nil {
		t.Error("the checkpoint of another log is accepted")
	}
}

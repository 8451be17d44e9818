package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

const (
	module  = "../../../sdk/js/verify/verify.wasm"
	vectors = "../../vectors/proofs.json"
)

func TestEveryStoredProofFileGetsItsVerdict(t *testing.T) {
	var stored struct {
		Vkey  string
		Cases []struct {
			Name, File string
			Newer      *string
			Valid      bool
			Step       *string `json:"failed step"`
		}
	}
	read(t, vectors, &stored)
	wasm, err := os.ReadFile(module)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	verifier, err := load(ctx, wasm)
	if err != nil {
		t.Fatal(err)
	}
	defer verifier.close(ctx)
	for _, it := range stored.Cases {
		request := append(field(fieldFile, unhex(t, it.File)), field(fieldKey, []byte(stored.Vkey))...)
		if it.Newer != nil {
			request = append(request, field(fieldNewer, unhex(t, *it.Newer))...)
		}
		text, err := verifier.verify(ctx, request)
		if err != nil {
			t.Fatalf("%s: %v", it.Name, err)
		}
		var answer struct {
			Valid bool
			Step  *string `json:"failed_step"`
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatalf("%s: %v", it.Name, err)
		}
		if answer.Valid != it.Valid || (!it.Valid && *answer.Step != *it.Step) {
			t.Errorf("%s: %s", it.Name, text)
		}
	}
	if len(stored.Cases) < 100 {
		t.Errorf("only %d files", len(stored.Cases))
	}
}

func TestACallThatMakesNoSenseHasNoVerdict(t *testing.T) {
	text, err := run(module, vectors, "nonsense")
	if err != nil || !strings.HasPrefix(string(text), `{"error":{"message":"a trusted key is not`) {
		t.Errorf("%s, %v", text, err)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	bytes, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

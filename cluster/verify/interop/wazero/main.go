// Checks a proof file in Go: the verifier is the WebAssembly module verify.wasm, which runs in
// wazero, without cgo. The module has no imports, so it can neither read nor send anything.
//
//	wazero MODULE FILE VKEY
//
// It prints what `coppice verify --json` prints, and exits with 0 if the file is valid, 1 if it is
// refused, and 2 if the arguments make no sense.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Kinds of the fields of a request (docs/proof-files.md).
const (
	fieldFile  = 1
	fieldKey   = 2
	fieldNewer = 4
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: wazero MODULE FILE VKEY")
		os.Exit(2)
	}
	text, err := run(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "wazero:", err)
		os.Exit(2)
	}
	fmt.Println(string(text))
	var answer struct {
		Valid *bool `json:"valid"`
	}
	switch err := json.Unmarshal(text, &answer); {
	case err != nil || answer.Valid == nil:
		os.Exit(2)
	case !*answer.Valid:
		os.Exit(1)
	}
}

func run(module, file, vkey string) ([]byte, error) {
	wasm, err := os.ReadFile(module)
	if err != nil {
		return nil, err
	}
	proof, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	verifier, err := load(ctx, wasm)
	if err != nil {
		return nil, err
	}
	defer verifier.close(ctx)
	return verifier.verify(ctx, append(field(fieldFile, proof), field(fieldKey, []byte(vkey))...))
}

// verifier judges one file after the other. After an error it must not be used again.
type verifier struct {
	runtime              wazero.Runtime
	memory               api.Memory
	alloc, free, verdict api.Function
}

func load(ctx context.Context, wasm []byte) (*verifier, error) {
	runtime := wazero.NewRuntime(ctx)
	instance, err := runtime.Instantiate(ctx, wasm)
	if err != nil {
		runtime.Close(ctx)
		return nil, err
	}
	function := instance.ExportedFunction
	return &verifier{runtime, instance.Memory(), function("alloc"), function("free"), function("verify")}, nil
}

func (v *verifier) close(ctx context.Context) {
	v.runtime.Close(ctx)
}

// field is one field of a request: u8 kind, u32 length, bytes.
func field(kind byte, value []byte) []byte {
	head := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(value)))
	return append(head, value...)
}

// verify returns the answer to a request as JSON.
func (v *verifier) verify(ctx context.Context, request []byte) ([]byte, error) {
	size := uint64(len(request))
	at, err := v.alloc.Call(ctx, size)
	if err != nil {
		return nil, err
	}
	if at[0] == 0 || !v.memory.Write(uint32(at[0]), request) {
		return nil, errors.New("the file is too long: a proof file has at most 64 MiB")
	}
	answer, err := v.verdict.Call(ctx, at[0], size)
	if err != nil {
		return nil, err
	}
	from, length := uint32(answer[0]), uint32(answer[0]>>32)
	shared, ok := v.memory.Read(from, length)
	if !ok {
		return nil, errors.New("the module is not the verifier")
	}
	text := bytes.Clone(shared)
	for _, part := range [][2]uint64{{at[0], size}, {uint64(from), uint64(length)}} {
		if _, err := v.free.Call(ctx, part[0], part[1]); err != nil {
			return nil, err
		}
	}
	return text, nil
}

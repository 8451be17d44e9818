// Judges an evidence file of the kind contradiction with the packages of Go's checksum database,
// which know nothing of Coppice (docs/verification.md, section 20). It takes files whose two notes
// are signed by one key, which needs no key changes.
//
//	judge FILE VKEY
package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: judge FILE VKEY")
		os.Exit(2)
	}
	if err := judge(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

func judge(path, vkey string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := parse(content)
	if err != nil {
		return err
	}
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return err
	}
	a, err := open(file.a, verifier)
	if err != nil {
		return fmt.Errorf("note a: %w", err)
	}
	b, err := open(file.b, verifier)
	if err != nil {
		return fmt.Errorf("note b: %w", err)
	}
	if file.size != a.N || a.N > b.N {
		return errors.New("the size is not that of note a, or note b is smaller")
	}
	if err := tlog.CheckTree(file.proof, b.N, b.Hash, file.size, file.root); err != nil {
		return err
	}
	if file.root == a.Hash {
		return errors.New("the log of note b goes on from that of note a")
	}
	fmt.Printf("%s has signed two logs, which differ in their first %d entries\n", verifier.Name(), a.N)
	return nil
}

// evidence is a parsed file.
type evidence struct {
	size  int64
	root  tlog.Hash
	proof tlog.TreeProof
	a, b  []byte
}

func parse(file []byte) (e evidence, err error) {
	rest := file
	next := func() (name, value string) {
		line, after, _ := bytes.Cut(rest, []byte{'\n'})
		rest = after
		name, value, _ = strings.Cut(string(line), " ")
		return name, value
	}
	for _, expected := range []string{"coppice-evidence/v1", "contradiction"} {
		if name, _ := next(); name != expected {
			return e, fmt.Errorf("%q, not %q", name, expected)
		}
	}
	for len(rest) > 0 {
		name, value := next()
		switch name {
		case "size":
			e.size, err = strconv.ParseInt(value, 10, 64)
		case "root":
			e.root, err = tlog.ParseHash(value)
		case "proof":
			var hash tlog.Hash
			hash, err = tlog.ParseHash(value)
			e.proof = append(e.proof, hash)
		case "a", "b":
			var length int
			if length, err = strconv.Atoi(value); err != nil || length < 0 || length > len(rest) {
				return e, fmt.Errorf("the length of note %s", name)
			}
			if name == "a" {
				e.a = rest[:length]
			} else {
				e.b = rest[:length]
			}
			rest = rest[length:]
		default:
			err = fmt.Errorf("a line %q", name)
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// open checks the signature of a note, and reads its checkpoint.
func open(signed []byte, verifier note.Verifier) (tree tlog.Tree, err error) {
	opened, err := note.Open(signed, note.VerifierList(verifier))
	if err != nil {
		return tree, err
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[3] != "" || lines[0] != verifier.Name() {
		return tree, errors.New("not three lines that begin with the origin")
	}
	if tree.N, err = strconv.ParseInt(lines[1], 10, 64); err != nil {
		return tree, err
	}
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if err != nil || len(root) != tlog.HashSize {
		return tree, errors.New("a root that is no hash")
	}
	copy(tree.Hash[:], root)
	return tree, nil
}

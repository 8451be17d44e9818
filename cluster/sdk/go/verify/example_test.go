package verify_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"coppice.dev/sdk/verify"
)

// example gives a proof file of the test vectors, and the key of their ledger.
func example(name string) (file []byte, key string) { return exampleIn("proofs.json", name) }

func exampleIn(vectorFile, name string) (file []byte, key string) {
	content, err := os.ReadFile("../../../verify/vectors/" + vectorFile)
	if err != nil {
		log.Fatal(err)
	}
	var vectors struct {
		Vkey          string
		Cases, Proofs []struct{ Name, File string }
	}
	if err := json.Unmarshal(content, &vectors); err != nil {
		log.Fatal(err)
	}
	for _, c := range append(vectors.Cases, vectors.Proofs...) {
		if c.Name == name {
			file, err = hex.DecodeString(c.File)
		}
	}
	if err != nil || file == nil {
		log.Fatal("no such file: ", name)
	}
	return file, vectors.Vkey
}

// A proof file is judged with the ledger's key alone, and compared with what was asked.
func Example() {
	file, text := example("a key changed last in a frozen tree")
	key, err := verify.ParseVKey(text)
	if err != nil {
		log.Fatal(err)
	}
	proof, err := verify.Verify(file, key, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"key-15", "key-12"} {
		err = proof.Answers(verify.Question{Subject: verify.AboutKeys{[]byte(key)}})
		fmt.Printf("asked for %s: %v\n", key, err)
	}
	for _, answer := range proof.Query.Keys {
		fmt.Printf("%s has a value of %d bytes since %s\n", answer.Key, answer.Record.Length, answer.Record.Stamp)
	}
	fmt.Println("proven at version", proof.Header.Stamp(), "by a log of", proof.Checkpoint.Size, "entries")
	// Output:
	// asked for key-15: <nil>
	// asked for key-12: verify: question: the proof is for other keys
	// key-15 has a value of 40 bytes since (1, 28)
	// proven at version (1, 32) by a log of 46 entries
}

// An interval proof shows anchors around an entry of the log. Their tokens are judged elsewhere, by
// the certificates of the authorities that made them.
func ExampleInterval() {
	file, text := exampleIn("anchors.json", "a version between two anchors")
	key, err := verify.ParseVKey(text)
	if err != nil {
		log.Fatal(err)
	}
	proof, err := verify.Verify(file, key, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("entry", proof.Header.Sequence, "of the log, version", proof.Header.Stamp())
	for _, anchor := range proof.Interval.Below {
		fmt.Println("it is younger than what is stamped in entry", anchor.Header.Sequence)
	}
	for _, anchor := range proof.Interval.Above {
		stamps := anchor.Header.Anchor.Stamps
		fmt.Println("it is in the log of", stamps.Size, "entries that is stamped in entry", anchor.Header.Sequence)
		fmt.Println(len(stamps.Tokens), "tokens should have the imprint", anchor.Imprint.String()[:8])
	}
	// Output:
	// entry 5 of the log, version (0, 4)
	// it is younger than what is stamped in entry 4
	// it is in the log of 7 entries that is stamped in entry 8
	// 2 tokens should have the imprint c0bb9738
}

// The step that refused a file is in its error.
func ExampleError() {
	file, text := example("a receipt")
	key, err := verify.ParseVKey(text)
	if err != nil {
		log.Fatal(err)
	}
	file[len(file)/2] ^= 1
	_, err = verify.Verify(file, key, nil)
	var refused *verify.Error
	if errors.As(err, &refused) {
		fmt.Println("refused at step", refused.Step)
	}
	// Output: refused at step format
}

// The hash of a batch's journal entry is the name by which its receipt is asked for.
func ExampleBatchEntry() {
	shards := []verify.Shard{{ID: 0, High: []byte("m")}, {ID: 1, Low: []byte("m")}}
	operations := []verify.Operation{verify.Put([]byte("alice"), []byte("70")), verify.Delete([]byte("zoe"))}
	entry, err := verify.BatchEntry(shards, nil, 0, operations, []byte("transfer 1"))
	if err != nil {
		log.Fatal(err)
	}
	decoded, err := verify.DecodeEntry(entry)
	if err != nil {
		log.Fatal(err)
	}
	for _, touched := range decoded.Touched {
		fmt.Println("shard", touched.Shard)
	}
	question := verify.Question{Subject: verify.AboutBatch(verify.JournalLeafHash(entry))}
	file, text := example("a receipt")
	key, err := verify.ParseVKey(text)
	if err != nil {
		log.Fatal(err)
	}
	proof, err := verify.Verify(file, key, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(proof.Answers(question))
	// Output:
	// shard 0
	// shard 1
	// verify: question: the proof is for another batch
}

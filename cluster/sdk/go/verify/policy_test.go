package verify

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

const testOrigin = "ledger.example/x"

func seeded(seed uint16) ed25519.PrivateKey {
	var bytes [32]byte
	binary.LittleEndian.PutUint16(bytes[:], seed)
	return ed25519.NewKeyFromSeed(bytes[:])
}

func spell(name string, algorithm byte, key []byte) string {
	id := keyID(name, algorithm, key)
	return name + "+" + hex.EncodeToString(
		id[:],
	) + "+" + base64.StdEncoding.EncodeToString(
		append([]byte{algorithm}, key...),
	)
}

func publicOf(seed uint16) []byte { return seeded(seed).Public().(ed25519.PublicKey) }

func logVKey() string { return spell(testOrigin, 1, publicOf(1)) }

func witnessVKey(seed uint16) string {
	return spell(fmt.Sprintf("w%d.example", seed), 4, publicOf(seed))
}

func signatureLineOf(name string, algorithm byte, key, payload []byte) string {
	id := keyID(name, algorithm, key)
	return "— " + name + " " + base64.StdEncoding.EncodeToString(append(id[:], payload...)) + "\n"
}

var emptyCheckpoint = Checkpoint{Origin: testOrigin, Root: emptyRoot}

// cosignature is the line of witness number `seed` on a checkpoint.
func cosignature(checkpoint Checkpoint, seed uint16, time uint64) string {
	message := fmt.Sprintf("cosignature/v1\ntime %d\n%s", time, checkpoint.text())
	payload := binary.BigEndian.AppendUint64(nil, time)
	payload = append(payload, ed25519.Sign(seeded(seed), []byte(message))...)
	return signatureLineOf(fmt.Sprintf("w%d.example", seed), 4, publicOf(seed), payload)
}

func signedNoteOf(lines ...string) *signedNote {
	text := emptyCheckpoint.text()
	note := text + "\n" + signatureLineOf(testOrigin, 1, publicOf(1), ed25519.Sign(seeded(1), []byte(text)))
	parsed, err := parseNote([]byte(note + strings.Join(lines, "")))
	if err != nil {
		panic(err)
	}
	return &parsed
}

func cosigned(seeds ...uint16) *signedNote {
	var lines []string
	for _, seed := range seeds {
		lines = append(lines, cosignature(emptyCheckpoint, seed, 7))
	}
	return signedNoteOf(lines...)
}

func policyText(rest string) string {
	text := "log " + logVKey() + " http://127.0.0.1/\n"
	for seed := uint16(2); seed < 10; seed++ {
		text += fmt.Sprintf("witness w%d %s\n", seed, witnessVKey(seed))
	}
	return text + rest
}

func policyOf(t *testing.T, rest string) *Policy {
	t.Helper()
	policy, err := ParsePolicy([]byte(policyText(rest)))
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func TestGroupsCountTheirMembers(t *testing.T) {
	for rest, all := range map[string]map[bool][][]uint16{
		"group g 2 w2 w3 w4\nquorum g\n": {
			false: {{}, {2}, {2, 2, 2}, {2, 5, 6, 7, 8, 9}}, true: {{2, 4}, {4, 3, 2}},
		},
		"group x 2 w2 w3 w4\ngroup y any w5 w6\ngroup both all x y\nquorum both\n": {
			false: {{2, 3}, {5, 6}, {2, 5}}, true: {{2, 3, 6}, {2, 3, 4, 5, 6}},
		},
		"quorum w7\n":   {false: {{2, 3, 4, 5, 6, 8, 9}}, true: {{7}}},
		"quorum none\n": {true: {{}}},
	} {
		policy := policyOf(t, rest)
		for enough, notes := range all {
			for _, seeds := range notes {
				if err := policy.check(cosigned(seeds...)); (err == nil) != enough {
					t.Errorf("%q, cosigned by %v: %v", rest, seeds, err)
				}
			}
		}
	}
}

func TestAWrongLineOfAKnownKeyCondemnsTheNote(t *testing.T) {
	policy := policyOf(t, "group g any w2 w3\nquorum g\n")
	good, other := cosignature(emptyCheckpoint, 2, 7), Checkpoint{Origin: testOrigin, Size: 1, Root: emptyRoot}
	if err := policy.check(signedNoteOf(good, cosignature(other, 3, 7))); err == nil {
		t.Error("a wrong line of a witness is accepted")
	}
	if err := policy.check(signedNoteOf(good, cosignature(other, 77, 7))); err != nil {
		t.Errorf("a wrong line of a stranger counts: %v", err)
	}
	if err := policy.check(signedNoteOf(cosignature(emptyCheckpoint, 2, 0))); err == nil {
		t.Error("a line without a time counts")
	}
	if err := policy.check(signedNoteOf(good, cosignature(emptyCheckpoint, 3, 0))); err != nil {
		t.Errorf("a line without a time condemns: %v", err)
	}
	if err := policy.check(signedNoteOf(cosignature(emptyCheckpoint, 2, 1<<63))); err == nil {
		t.Error("a time of 2^63 is accepted")
	}
	wrong := signatureLineOf(testOrigin, 1, publicOf(1), make([]byte, 64))
	if err := policy.check(signedNoteOf(good, wrong)); err == nil {
		t.Error("a wrong line of the log is accepted")
	}
	short := signatureLineOf("w2.example", 4, publicOf(2), make([]byte, 9))
	if err := policy.check(signedNoteOf(good, short)); err == nil {
		t.Error("a short line of a witness is accepted")
	}
}

func TestWhatIsNoPolicyIsRefused(t *testing.T) {
	weak := spell("weak", 4, append([]byte{1}, make([]byte, 31)...))
	for _, rest := range []string{
		"", "quorum nobody\n", "quorum w2\nquorum w2\n", "quorum none\nquorum none\n", "quorum\n", "quorum w2 w3\n",
		"group g 0 w2\nquorum g\n", "group g 2 w2\nquorum g\n", "group g 01 w2\nquorum g\n", "group g +1 w2\nquorum g\n",
		"group g some w2\nquorum g\n", "group g any\nquorum g\n", "group g any w2 w2\nquorum g\n",
		"group g any w2\ngroup h any w2\nquorum h\n", "group g any none\nquorum g\n", "group g any g\nquorum g\n",
		"group g any h\ngroup h any w2\nquorum g\n", "group w2 any w3\nquorum w2\n", "group none any w3\nquorum none\n",
		"group g any w2\ngroup g any w3\nquorum g\n", "quorum w2\r\n", "quorum\vw2\n", "\x00quorum w2\n",
		"policy v1\nquorum w2\n",
		"QUORUM w2\n", "quorum w2 # one of them\n",
		"witness w2 " + witnessVKey(50) + "\nquorum none\n", "witness none " + witnessVKey(50) + "\nquorum none\n",
		"witness again " + witnessVKey(2) + "\nquorum none\n", "witness x " + logVKey() + "\nquorum none\n",
		"witness x " + spell("x", 4, publicOf(1)) + "\nquorum none\n",
		"log " + spell("x", 1, publicOf(2)) + "\nquorum none\n",
		"witness x " + witnessVKey(50) + " a b\nquorum none\n", "witness x " + weak + "\nquorum none\n",
		"log " + witnessVKey(50) + "\nquorum none\n", "log " + logVKey() + "\nquorum none\n",
		"witness x " + spell("x", 5, publicOf(50)) + "\nquorum none\n",
		"#" + strings.Repeat("x", policyBytesMax) + "\nquorum none\n",
	} {
		if _, err := ParsePolicy([]byte(policyText(rest))); err == nil {
			t.Errorf("accepted: %.80q", rest)
		}
	}
	for _, fine := range []string{
		"\n\n \t\n  # a comment\nquorum\t w2 \n", "quorum w2", "# quorum w3\nquorum w2\n",
		"witness later " + spell("pq", 6, make([]byte, 1312)) + "\nquorum w2\n",
	} {
		if err := policyOf(t, fine).check(cosigned(2)); err != nil {
			t.Errorf("%.80q: %v", fine, err)
		}
	}
	later := policyOf(t, "witness later "+spell("pq", 6, make([]byte, 1312))+"\nquorum later\n")
	if err := later.check(cosigned(2)); err == nil {
		t.Error("a witness of an unknown algorithm counts")
	}
	many := func(logs, witnesses int) error {
		var text strings.Builder
		for i := range logs {
			fmt.Fprintf(&text, "log %s\n", spell("l", 1, publicOf(uint16(1000+i))))
		}
		for i := range witnesses {
			fmt.Fprintf(&text, "witness w%d %s\n", i, witnessVKey(uint16(2000+i)))
		}
		_, err := ParsePolicy([]byte(text.String() + "quorum none\n"))
		return err
	}
	if many(256, 256) != nil || many(257, 0) == nil || many(0, 257) == nil {
		t.Error("another limit of logs or witnesses")
	}
}

// signAgain replaces the note of a file, and mends its checksum.
func withNote(t *testing.T, file []byte, note []byte) []byte {
	t.Helper()
	parsed, err := decodeFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head := len(fileMagic) + 1 + 1 + 16
	w := append(writer{}, file[:head]...)
	w.str32(note)
	w.bytes(file[head+4+len(parsed.log.note) : len(file)-checksumBytes])
	w.u64(checksum(w))
	return w
}

func TestTheNewestCheckpointShownNeedsTheQuorum(t *testing.T) {
	_, file, key := fileOf(t, "proofs.json", "a key changed last in the active tree")
	parsed, err := decodeFile(file)
	if err != nil {
		t.Fatal(err)
	}
	note, err := parseNote(parsed.log.note)
	if err != nil {
		t.Fatal(err)
	}
	checkpoint, err := note.checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	policyText := "log " + key.String() + "\n"
	for seed := uint16(2); seed < 5; seed++ {
		policyText += fmt.Sprintf("witness w%d %s\n", seed, witnessVKey(seed))
	}
	policy, err := ParsePolicy([]byte(policyText + "group g 2 w2 w3 w4\nquorum g\n"))
	if err != nil {
		t.Fatal(err)
	}
	with := func(seeds ...uint16) []byte {
		signed := string(parsed.log.note)
		for _, seed := range seeds {
			signed += cosignature(checkpoint, seed, 7)
		}
		return []byte(signed)
	}
	judged := func(file, newer []byte) string {
		_, err := VerifyUnder(file, policy, &Options{Newer: newer})
		return stepOf(err)
	}
	enough, few := withNote(t, file, with(2, 4)), withNote(t, file, with(2))
	for i, got := range []string{
		judged(enough, nil), judged(few, nil), judged(file, nil), judged(file, with(3, 4)), judged(enough, with(3)),
	} {
		if want := []string{"", "cosignatures", "cosignatures", "", "cosignatures"}[i]; got != want {
			t.Errorf("%d: %q, not %q", i, got, want)
		}
	}
	stranger, err := ParsePolicy([]byte("log " + logVKey() + "\nquorum none\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyUnder(file, stranger, nil); stepOf(err) != "checkpoint" {
		t.Error(err)
	}
}

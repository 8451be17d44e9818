package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	noteBytesMax      = 64 << 10
	signaturesMax     = 100
	checkpointSizeEnd = 1 << 63

	algorithmEd25519  = 0x01
	algorithmCosigner = 0x04
	algorithmMLDSA    = 0x06
)

// VKey is the public key of a ledger, with the name of the log that it signs (section 10).
type VKey struct {
	Name string
	Key  PublicKey
}

// keyID is the first four bytes of a hash over name, algorithm and key.
func keyID(name string, algorithm byte, key []byte) (id [4]byte) {
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{'\n', algorithm})
	h.Write(key)
	copy(id[:], h.Sum(nil))
	return id
}

// String spells the key as a C2SP vkey.
func (k VKey) String() string {
	id := keyID(k.Name, algorithmEd25519, k.Key[:])
	typed := append([]byte{algorithmEd25519}, k.Key[:]...)
	return k.Name + "+" + hex.EncodeToString(id[:]) + "+" + base64.StdEncoding.EncodeToString(typed)
}

// ParseVKey reads `name+hex(key id)+base64(01 || public key)`.
func ParseVKey(text string) (VKey, error) {
	name, algorithm, key, err := parseAnyKey(text)
	if err != nil {
		return VKey{}, err
	}
	if algorithm != algorithmEd25519 {
		return VKey{}, errors.New("the key does not sign logs by Ed25519")
	}
	public, err := publicKey(key)
	return VKey{Name: name, Key: public}, err
}

func publicKey(key []byte) (PublicKey, error) {
	if len(key) != len(PublicKey{}) {
		return PublicKey{}, errors.New("an Ed25519 key has 32 bytes")
	}
	public := PublicKey(key)
	if smallOrder(public) {
		return PublicKey{}, errors.New("the key has small order")
	}
	return public, nil
}

// parseAnyKey reads a C2SP vkey of any algorithm, and compares its key id.
func parseAnyKey(text string) (name string, algorithm byte, key []byte, err error) {
	name, rest, _ := strings.Cut(text, "+")
	id, encoded, found := strings.Cut(rest, "+")
	if !found || !validName(name) {
		return "", 0, nil, errors.New("a key is written as name+id+base64")
	}
	typed, err := decodeBase64(encoded)
	if err != nil || len(typed) < 2 {
		return "", 0, nil, errors.New("the key is not canonical base64")
	}
	expected := keyID(name, typed[0], typed[1:])
	if id != hex.EncodeToString(expected[:]) {
		return "", 0, nil, errors.New("the key has another key id")
	}
	return name, typed[0], typed[1:], nil
}

func validName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.Contains(name, "+") &&
		strings.IndexFunc(name, unicode.IsSpace) < 0
}

var strictBase64 = base64.StdEncoding.Strict()

// decodeBase64 accepts the canonical spelling alone. The library skips line ends by itself.
func decodeBase64(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, errors.New("a line end within base64")
	}
	return strictBase64.DecodeString(text)
}

// signatureLine is one line below the text of a note.
type signatureLine struct {
	name string
	id   [4]byte
	// payload is what follows the key id.
	payload []byte
}

// signedNote is a C2SP signed note, whose signatures nobody has checked yet.
type signedNote struct {
	text  []byte
	lines []signatureLine
}

func parseNote(note []byte) (signedNote, error) {
	bad := func(why string) (signedNote, error) { return signedNote{}, errors.New("the note " + why) }
	if len(note) > noteBytesMax {
		return bad("is above 64 KiB")
	}
	if !utf8.Valid(note) {
		return bad("is no UTF-8")
	}
	for _, b := range note {
		if b < ' ' && b != '\n' {
			return bad("has a control character")
		}
	}
	at := bytes.LastIndex(note, []byte("\n\n"))
	if at < 0 {
		return bad("has no empty line above its signatures")
	}
	text, below := note[:at+1], note[at+2:]
	if len(below) == 0 || below[len(below)-1] != '\n' {
		return bad("has no signature line, or no line feed at its end")
	}
	if bytes.Count(below, []byte{'\n'}) > signaturesMax {
		return bad("has more than 100 signature lines")
	}
	parsed := signedNote{text: text}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(below), "\n"), "\n") {
		name, encoded, found := strings.Cut(strings.TrimPrefix(line, "— "), " ")
		payload, err := decodeBase64(encoded)
		if !strings.HasPrefix(line, "— ") || !found || !validName(name) || err != nil || len(payload) < 5 {
			return bad("has a signature line of another form")
		}
		parsed.lines = append(parsed.lines, signatureLine{name: name, id: [4]byte(payload), payload: payload[4:]})
	}
	return parsed, nil
}

var (
	errUnsigned     = errors.New("the note is not signed by the key in force")
	errBadSignature = errors.New("a signature of a known key does not verify")
)

// signedBy checks all lines of a log's key. There is at least one, and each verifies.
func (n *signedNote) signedBy(key VKey) error {
	id, signed := keyID(key.Name, algorithmEd25519, key.Key[:]), false
	for _, line := range n.lines {
		if line.name != key.Name || line.id != id {
			continue
		}
		if !verifySignature(key.Key, n.text, line.payload) {
			return errBadSignature
		}
		signed = true
	}
	if !signed {
		return errUnsigned
	}
	return nil
}

// Checkpoint is the size and the root of a log at one time.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   Digest
}

// text is what a checkpoint's key signs.
func (c Checkpoint) text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// checkpoint reads the three lines of the text.
func (n *signedNote) checkpoint() (Checkpoint, error) {
	lines := strings.Split(string(n.text), "\n")
	if len(lines) != 4 || lines[3] != "" || lines[0] == "" {
		return Checkpoint{}, errors.New("a checkpoint has exactly three lines")
	}
	size, err := parseDecimal(lines[1])
	if err != nil || size >= checkpointSizeEnd {
		return Checkpoint{}, errors.New("the size of a checkpoint is a plain number below 2^63")
	}
	root, err := decodeBase64(lines[2])
	if err != nil || len(root) != 32 {
		return Checkpoint{}, errors.New("the root of a checkpoint is 32 bytes in canonical base64")
	}
	if size == 0 && Digest(root) != emptyRoot {
		return Checkpoint{}, errors.New("an empty log has the root of an empty list")
	}
	return Checkpoint{Origin: lines[0], Size: size, Root: Digest(root)}, nil
}

// parseDecimal reads a number without sign and without needless zeros.
func parseDecimal(text string) (uint64, error) {
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil || strconv.FormatUint(value, 10) != text {
		return 0, errors.New("not a plain decimal number")
	}
	return value, nil
}

// OpenCheckpoint reads a note and checks that the key has signed it. The caller gives the key in
// force at the note's size. OpenCheckpoint does not show that the checkpoint continues another one.
func OpenCheckpoint(note []byte, key VKey) (Checkpoint, error) {
	parsed, err := parseNote(note)
	if err != nil {
		return Checkpoint{}, under(StepCheckpoint, err)
	}
	checkpoint, err := parsed.opened(key)
	return checkpoint, under(StepCheckpoint, err)
}

// ClaimedCheckpoint reads the checkpoint of a note, without verifying any signature.
func ClaimedCheckpoint(note []byte) (Checkpoint, error) {
	parsed, err := parseNote(note)
	if err != nil {
		return Checkpoint{}, under(StepCheckpoint, err)
	}
	checkpoint, err := parsed.checkpoint()
	return checkpoint, under(StepCheckpoint, err)
}

// CheckpointSize is the size that a note claims. No signature is verified.
func CheckpointSize(note []byte) (uint64, error) {
	checkpoint, err := ClaimedCheckpoint(note)
	return checkpoint.Size, err
}

func (n *signedNote) opened(key VKey) (Checkpoint, error) {
	checkpoint, err := n.checkpoint()
	if err != nil {
		return Checkpoint{}, err
	}
	if err := n.signedBy(key); err != nil {
		return Checkpoint{}, err
	}
	if checkpoint.Origin != key.Name {
		return Checkpoint{}, errors.New("the origin of the checkpoint is not the key's name")
	}
	return checkpoint, nil
}

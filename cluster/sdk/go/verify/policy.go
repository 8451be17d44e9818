package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"filippo.io/mldsa"
)

const (
	policyBytesMax = 256 << 10
	policyLogsMax  = 256
	policyNamesMax = 256
)

// Policy is a C2SP tlog-policy: which logs are trusted, and which witnesses must have cosigned.
type Policy struct {
	logs  []VKey
	names []policyName
	// quorum is the index of the name that must count, or -1 for none.
	quorum int
}

// policyName is a witness or a group. The members of a group stand before it in the list.
type policyName struct {
	name      string
	witness   *witness
	threshold int
	members   []int
	grouped   bool
}

type witness struct {
	name string
	id   [4]byte
	// key is that of an Ed25519 cosigner, unless mldsa is set.
	key   PublicKey
	mldsa *mldsa.PublicKey
}

// ParsePolicy reads a policy file (section 10). The error names the line.
func ParsePolicy(text []byte) (*Policy, error) {
	if len(text) > policyBytesMax {
		return nil, errors.New("verify: a policy is above 256 KiB")
	}
	parser := policyParser{policy: &Policy{quorum: -1}, byName: map[string]int{}, keys: map[string]bool{}}
	for at, line := range bytes.Split(text, []byte{'\n'}) {
		words := strings.FieldsFunc(string(line), func(r rune) bool { return r == ' ' || r == '\t' })
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		if err := parser.line(words); err != nil {
			return nil, fmt.Errorf("verify: line %d of the policy: %w", at+1, err)
		}
	}
	if !parser.hasQuorum {
		return nil, errors.New("verify: the policy has no quorum")
	}
	return parser.policy, nil
}

type policyParser struct {
	policy    *Policy
	byName    map[string]int
	keys      map[string]bool
	hasQuorum bool
}

func (p *policyParser) line(words []string) error {
	switch words[0] {
	case "log":
		return p.log(words[1:])
	case "witness":
		return p.witness(words[1:])
	case "group":
		return p.group(words[1:])
	case "quorum":
		return p.quorum(words[1:])
	}
	return errors.New("it begins with none of log, witness, group and quorum")
}

func (p *policyParser) newKey(key []byte) error {
	if p.keys[string(key)] {
		return errors.New("another line has the same key")
	}
	p.keys[string(key)] = true
	return nil
}

func (p *policyParser) log(words []string) error {
	if len(words) < 1 || len(words) > 2 {
		return errors.New("a log has a key, and perhaps a URL")
	}
	if len(p.policy.logs) == policyLogsMax {
		return errors.New("there are more than 256 logs")
	}
	key, err := ParseVKey(words[0])
	if err != nil {
		return err
	}
	p.policy.logs = append(p.policy.logs, key)
	return p.newKey(key.Key[:])
}

func (p *policyParser) witness(words []string) error {
	if len(words) < 2 || len(words) > 3 {
		return errors.New("a witness has a name and a key, and perhaps a URL")
	}
	name, algorithm, key, err := parseAnyKey(words[1])
	if err != nil {
		return err
	}
	cosigner := &witness{name: name, id: keyID(name, algorithm, key)}
	switch algorithm {
	case algorithmCosigner:
		if cosigner.key, err = publicKey(key); err != nil {
			return err
		}
	case algorithmMLDSA:
		if cosigner.mldsa, err = mldsa.NewPublicKey(mldsa.MLDSA44(), key); err != nil {
			return err
		}
	default:
		return errors.New("a witness has a key of another type")
	}
	if err := p.newKey(key); err != nil {
		return err
	}
	return p.add(policyName{name: words[0], witness: cosigner})
}

func (p *policyParser) add(name policyName) error {
	if _, known := p.byName[name.name]; known || name.name == "none" {
		return errors.New("the name is taken")
	}
	if len(p.policy.names) == policyNamesMax {
		return errors.New("there are more than 256 witnesses and groups")
	}
	p.byName[name.name] = len(p.policy.names)
	p.policy.names = append(p.policy.names, name)
	return nil
}

func (p *policyParser) group(words []string) error {
	if len(words) < 3 {
		return errors.New("a group has a name, a number and members")
	}
	group := policyName{name: words[0]}
	for _, word := range words[2:] {
		at, known := p.byName[word]
		if !known || p.policy.names[at].grouped {
			return errors.New("a member is not defined above, or is one of another group")
		}
		p.policy.names[at].grouped = true
		group.members = append(group.members, at)
	}
	switch words[1] {
	case "any":
		group.threshold = 1
	case "all":
		group.threshold = len(group.members)
	default:
		number, err := parseDecimal(words[1])
		if err != nil || number < 1 || number > uint64(len(group.members)) {
			return errors.New("the number of a group is any, all, or from 1 to that of its members")
		}
		group.threshold = int(number)
	}
	return p.add(group)
}

func (p *policyParser) quorum(words []string) error {
	if len(words) != 1 || p.hasQuorum {
		return errors.New("a policy has one quorum, of one name")
	}
	p.hasQuorum = true
	if words[0] == "none" {
		return nil
	}
	at, known := p.byName[words[0]]
	if !known {
		return errors.New("the name of the quorum is not defined above")
	}
	p.policy.quorum = at
	return nil
}

// logsOf gives the keys of the policy's logs of this origin.
func (p *Policy) logsOf(origin string) (keys []VKey) {
	for _, log := range p.logs {
		if log.Name == origin {
			keys = append(keys, log)
		}
	}
	return keys
}

// check refuses a note if a line of a known key does not verify, or if too few witnesses count. The
// caller has to check that a log has signed it.
func (p *Policy) check(note *signedNote) error {
	for _, log := range p.logs {
		if err := note.signedBy(log); errors.Is(err, errBadSignature) {
			return err
		}
	}
	counts := make([]bool, len(p.names))
	for at, name := range p.names {
		if name.witness != nil {
			cosigned, err := name.witness.cosigned(note)
			if err != nil {
				return err
			}
			counts[at] = cosigned
			continue
		}
		enough := 0
		for _, member := range name.members {
			if counts[member] {
				enough++
			}
		}
		counts[at] = enough >= name.threshold
	}
	if p.quorum >= 0 && !counts[p.quorum] {
		return errors.New("too few witnesses of the policy have cosigned the newest checkpoint")
	}
	return nil
}

// cosigned tells whether a line of the witness counts. A line that does not verify is an error.
func (w *witness) cosigned(note *signedNote) (bool, error) {
	counts := false
	for _, line := range note.lines {
		if !w.wrote(&line) {
			continue
		}
		time, err := w.time(note, &line)
		if err != nil {
			return false, err
		}
		counts = counts || time > 0
	}
	return counts, nil
}

// wrote tells whether a line claims to be of the witness.
func (w *witness) wrote(line *signatureLine) bool {
	return line.name == w.name && line.id == w.id
}

// time gives the time of the witness's line on a note.
func (w *witness) time(note *signedNote, line *signatureLine) (uint64, error) {
	if len(line.payload) < 8 {
		return 0, errBadSignature
	}
	time, signature := binary.BigEndian.Uint64(line.payload), line.payload[8:]
	if time >= checkpointSizeEnd || !w.signed(note, time, signature) {
		return 0, errBadSignature
	}
	return time, nil
}

func (w *witness) signed(note *signedNote, time uint64, signature []byte) bool {
	if w.mldsa == nil {
		return verifySignature(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", time, note.text), signature)
	}
	checkpoint, err := note.checkpoint()
	if err != nil || len(w.name) > 255 || len(checkpoint.Origin) > 255 {
		return false
	}
	message := append([]byte("subtree/v1\n\x00"), byte(len(w.name)))
	message = append(message, w.name...)
	message = binary.BigEndian.AppendUint64(message, time)
	message = append(append(message, byte(len(checkpoint.Origin))), checkpoint.Origin...)
	message = binary.BigEndian.AppendUint64(message, 0)
	message = binary.BigEndian.AppendUint64(message, checkpoint.Size)
	message = append(message, checkpoint.Root[:]...)
	return mldsa.Verify(w.mldsa, message, signature, nil) == nil
}

// newest gives the largest time of the witness's lines that verify, or 0 if none counts. Unlike in
// a policy's check, other lines do not matter.
func (w *witness) newest(note *signedNote) (newest uint64) {
	for _, line := range note.lines {
		if !w.wrote(&line) {
			continue
		}
		if time, err := w.time(note, &line); err == nil {
			newest = max(newest, time)
		}
	}
	return newest
}

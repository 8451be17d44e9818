package verify

import "errors"

// Limits of anchors (section 16).
const (
	tokenBytesMax     = 16_384
	allTokensBytesMax = 64_000
	tokensMax         = 32
	certificatesMax   = 32
)

// TokenRFC3161 is the type of a token of RFC 3161. Tokens of other types count for nothing.
const TokenRFC3161 = 1

// Anchor is the body of an anchor. One of the two is set.
type Anchor struct {
	// Chain has certificates of an authority, in DER.
	Chain [][]byte
	// Stamps has tokens over a checkpoint of the log.
	Stamps *Stamps
}

// Stamps are tokens of authorities over an earlier checkpoint of the same log.
type Stamps struct {
	// Size and Root are those of the stamped checkpoint. The size is at least 1, and at most the
	// sequence of the anchor.
	Size   uint64
	Root   Digest
	Tokens []Token
}

// Token is a statement of an authority. This package does not judge it.
type Token struct {
	// Type is TokenRFC3161, or a type without a meaning yet.
	Type uint8
	// Chain is the number of the chain that has the token's certificates, in order of the log from 1
	// on. It is 0 if the token brings them.
	Chain uint8
	Bytes []byte
}

// Imprint is the hash that the tokens are to have: that of the stamped checkpoint's three lines, in
// the log of an origin.
func (s *Stamps) Imprint(origin string) Digest {
	return sha([]byte(Checkpoint{Origin: origin, Size: s.Size, Root: s.Root}.text()))
}

func (h *Header) decodeAnchor(r *reader) error {
	anchor := &Anchor{}
	switch form := r.u8(); {
	case r.err != nil:
	case form == 0:
		anchor.Chain = decodeCertificates(r)
	case form == 1:
		anchor.Stamps = decodeStamps(r)
	default:
		r.fail("an anchor of another form")
	}
	if err := r.end(); err != nil {
		return err
	}
	if stamps := anchor.Stamps; stamps != nil && (stamps.Size == 0 || stamps.Size > h.Sequence) {
		return errors.New("an anchor stamps nothing, or itself")
	}
	h.Anchor = anchor
	return nil
}

func decodeCertificates(r *reader) (chain [][]byte) {
	n := r.u16()
	if r.err == nil && (n == 0 || n > certificatesMax) {
		r.fail("a chain has 1 to 32 certificates")
	}
	for range n {
		chain = append(chain, r.str16(1, headerBytesMax, "a certificate"))
		if r.err != nil {
			break
		}
	}
	return chain
}

func decodeStamps(r *reader) *Stamps {
	stamps := &Stamps{Size: r.u64(), Root: r.digest()}
	n := r.u16()
	if r.err == nil && (n == 0 || n > tokensMax) {
		r.fail("an anchor has 1 to 32 tokens")
	}
	all := 0
	for range n {
		token := Token{Type: r.u8(), Chain: r.u8(), Bytes: r.str32(tokenBytesMax, "a token")}
		if all += len(token.Bytes); all > allTokensBytesMax || len(token.Bytes) == 0 {
			r.fail("a token is empty, or all of them are above 64,000 bytes")
		}
		if r.err != nil {
			break
		}
		stamps.Tokens = append(stamps.Tokens, token)
	}
	return stamps
}

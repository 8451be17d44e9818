package verify

import (
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/hex"
	"math/big"
	"slices"
	"testing"
)

// The curve of Ed25519, in affine coordinates: slow, and independent of the constants in the code.
var (
	fieldP = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	curveD = modP(new(big.Int).Mul(big.NewInt(-121665), new(big.Int).ModInverse(big.NewInt(121666), fieldP)))
)

func modP(v *big.Int) *big.Int { return v.Mod(v, fieldP) }

type affine struct{ x, y *big.Int }

func (a affine) plus(b affine) affine {
	mul := func(v ...*big.Int) *big.Int {
		product := big.NewInt(1)
		for _, factor := range v {
			modP(product.Mul(product, factor))
		}
		return product
	}
	shared := mul(curveD, a.x, b.x, a.y, b.y)
	one := big.NewInt(1)
	inverse := func(v *big.Int) *big.Int { return new(big.Int).ModInverse(modP(v), fieldP) }
	x := modP(new(big.Int).Add(mul(a.x, b.y), mul(b.x, a.y)))
	y := modP(new(big.Int).Add(mul(a.y, b.y), mul(a.x, b.x)))
	return affine{mul(x, inverse(new(big.Int).Add(one, shared))), mul(y, inverse(new(big.Int).Sub(one, shared)))}
}

// decompress gives the point of an encoding, or false if no point of the curve has its y.
func decompress(encoded [32]byte) (affine, bool) {
	odd := encoded[31]>>7 == 1
	encoded[31] &= 0x7f
	big_ := slices.Clone(encoded[:])
	slices.Reverse(big_)
	y := modP(new(big.Int).SetBytes(big_))
	yy := modP(new(big.Int).Mul(y, y))
	numerator := modP(new(big.Int).Sub(yy, big.NewInt(1)))
	denominator := modP(new(big.Int).Add(modP(new(big.Int).Mul(curveD, yy)), big.NewInt(1)))
	xx := modP(new(big.Int).Mul(numerator, new(big.Int).ModInverse(denominator, fieldP)))
	x := new(big.Int).ModSqrt(xx, fieldP)
	if x == nil {
		return affine{}, false
	}
	if (x.Bit(0) == 1) != odd && x.Sign() != 0 {
		x.Sub(fieldP, x)
	}
	return affine{x, y}, true
}

func hasSmallOrder(point affine) bool {
	for range 3 {
		point = point.plus(point)
	}
	return point.x.Sign() == 0 && point.y.Cmp(big.NewInt(1)) == 0
}

func TestAllPointsOfSmallOrderAreKnown(t *testing.T) {
	ys := map[string]bool{}
	for _, y := range smallOrderY {
		for _, sign := range []byte{0, 0x80} {
			encoded := y
			encoded[31] |= sign
			point, onCurve := decompress(encoded)
			if !onCurve || !hasSmallOrder(point) || !smallOrder(encoded) {
				t.Errorf("%x is not of small order", encoded)
			}
			ys[point.y.String()] = true
		}
	}
	// Eight points have an order that divides 8; those with one y differ in the sign of x.
	if len(ys) != 5 {
		t.Errorf("%d values of y", len(ys))
	}
	for low := range 19 {
		encoded := fieldMinus(0)
		encoded[0] += byte(low)
		point, onCurve := decompress(encoded)
		if onCurve && hasSmallOrder(point) != smallOrder(encoded) {
			t.Errorf("%x: a y of 2^255 - 19 + %d", encoded, low)
		}
	}
	key := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	point, onCurve := decompress([32]byte(key))
	if !onCurve || hasSmallOrder(point) || smallOrder([32]byte(key)) {
		t.Error("a key of high order is refused")
	}
}

func littleEndian(bytes []byte) *big.Int {
	bytes = slices.Clone(bytes)
	slices.Reverse(bytes)
	return new(big.Int).SetBytes(bytes)
}

func TestSignaturesAreStrict(t *testing.T) {
	private := ed25519.NewKeyFromSeed(make([]byte, 32))
	key := PublicKey(private.Public().(ed25519.PublicKey))
	message := []byte("message")
	signature := ed25519.Sign(private, message)
	if !verifySignature(key, message, signature) {
		t.Fatal("a signature does not verify")
	}
	// S plus the order of the group: the same equation, another spelling.
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	s := slices.Clone(signature[32:])
	slices.Reverse(s)
	long := new(big.Int).Add(new(big.Int).SetBytes(s), order).FillBytes(make([]byte, 32))
	slices.Reverse(long)
	if verifySignature(key, message, slices.Concat(signature[:32], long)) {
		t.Error("an S that is not reduced is accepted")
	}
	// Under the key that is the identity, (S B, S) verifies for each message. Here S is 1.
	identity := PublicKey{1}
	base, _ := hex.DecodeString("5866666666666666666666666666666666666666666666666666666666666666")
	byNobody := slices.Concat(base, []byte{1}, make([]byte, 31))
	// With R the identity, the holder of a key has S = k a: a sound equation with a point of small
	// order.
	seed := sha512.Sum512(make([]byte, 32))
	seed[0] &= 248
	seed[31] = seed[31]&63 | 64
	challenge := sha512.Sum512(slices.Concat(identity[:], key[:], message))
	product := new(big.Int).Mul(littleEndian(seed[:32]), littleEndian(challenge[:]))
	scalar := product.Mod(product, order).FillBytes(make([]byte, 32))
	slices.Reverse(scalar)
	smallR := slices.Concat(identity[:], scalar)
	for name, c := range map[string]struct {
		key       PublicKey
		signature []byte
	}{"a key of small order": {identity, byNobody}, "a point of small order": {key, smallR}} {
		// The library accepts this signature, but section 10 does not.
		if !ed25519.Verify(c.key[:], message, c.signature) {
			t.Errorf("%s: the library refuses it as well, so this shows nothing", name)
		}
		if verifySignature(c.key, message, c.signature) {
			t.Errorf("%s is accepted", name)
		}
	}
	for _, short := range [][]byte{nil, signature[:63], append(slices.Clone(signature), 0)} {
		if verifySignature(key, message, short) {
			t.Error("a signature of another length is accepted")
		}
	}
}

package verify

import "crypto/ed25519"

// PublicKey is an Ed25519 public key.
type PublicKey [32]byte

// smallOrderY has the y coordinates of the points of small order: 0, 1, -1, and the two of order 8.
// Each is little-endian, without the sign of x.
var smallOrderY = [...][32]byte{
	{},
	{1},
	fieldMinus(1),
	{
		0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
		0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
	},
	{
		0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
		0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
	},
}

// fieldMinus is 2^255 - 19 - n, for n below 237.
func fieldMinus(n byte) (y [32]byte) {
	for i := range y {
		y[i] = 0xff
	}
	y[0], y[31] = 0xed-n, 0x7f
	return y
}

// smallOrder tells whether an encoded point has small order, also if its y is spelt 2^255 - 19 too
// high.
func smallOrder(point [32]byte) bool {
	point[31] &= 0x7f
	if point[31] == 0x7f && point[0] >= 0xed {
		high := true
		for _, b := range point[1:31] {
			high = high && b == 0xff
		}
		if high {
			point = [32]byte{point[0] - 0xed}
		}
	}
	for i := range smallOrderY {
		if point == smallOrderY[i] {
			return true
		}
	}
	return false
}

// verifySignature is strict: section 10 allows neither keys nor points of small order. The standard
// library already refuses an S that is not reduced, and an R that is not spelt canonically.
func verifySignature(key PublicKey, message, signature []byte) bool {
	if len(signature) != ed25519.SignatureSize || smallOrder(key) || smallOrder([32]byte(signature[:32])) {
		return false
	}
	return ed25519.Verify(key[:], message, signature)
}

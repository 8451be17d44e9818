package verify

// beforeLog is the size of what precedes the log part of a proof file: the magic bytes, the format,
// the kind and the cluster.
const beforeLog = 31

// JoinLog makes a proof file of a log part and of the rest of the file. The proofs in the reply to
// a batch of queries share their log part, so it is sent once. Nothing is checked here: bytes that
// are no part of a file give bytes that are no file.
func JoinLog(log, rest []byte) []byte {
	at := min(len(rest), beforeLog)
	file := make([]byte, 0, len(log)+len(rest))
	return append(append(append(file, rest[:at]...), log...), rest[at:]...)
}

package verify

import "errors"

// Written gives what a version wrote, by its whole journal: the last operation on each key, in the
// order of the journal. The journal is complete and unaltered, since its entries come to the root
// in the header, and each list to the hash in its entry. That the header is in a ledger's log, and
// that the version's state follows from the journal, is for others to check.
func Written(header *Header, journal VersionJournal) (map[string]Operation, error) {
	leaves := entryHashes(journal.Entries)
	if uint64(len(leaves)) != uint64(header.JournalLeaves) ||
		MerkleRoot(leaves) != header.JournalRoot {
		return nil, errors.New("verify: the entries are not those of the header")
	}
	written := make(map[string]Operation)
	used := make(map[uint32]int, len(journal.Lists))
	for _, encoded := range journal.Entries {
		entry, err := DecodeEntry(encoded)
		if err != nil {
			return nil, err
		}
		for _, touched := range entry.Touched {
			lists, at := journal.Lists[touched.Shard], used[touched.Shard]
			if at == len(lists) || hashOf(tagOperations, lists[at]) != touched.List {
				return nil, errors.New("verify: the operation list of an entry is missing, or is another")
			}
			used[touched.Shard] = at + 1
			operations, err := DecodeOperations(lists[at])
			if err != nil {
				return nil, err
			}
			for _, operation := range operations {
				written[string(operation.Key)] = operation
			}
		}
	}
	for shard, lists := range journal.Lists {
		if used[shard] != len(lists) {
			return nil, errors.New("verify: a shard has an operation list that no entry names")
		}
	}
	return written, nil
}

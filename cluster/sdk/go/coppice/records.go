package coppice

import (
	"bytes"
	"context"
	"errors"
	"slices"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// LedgerRecords reads records of a ledger at head by their reserved keys, up to 4,096 of them. Keys
// are made by verify.LedgerID. A key without a record is missing in the answer, and is proven to
// have none.
func (c *Client) LedgerRecords(
	ctx context.Context, ledger LedgerID, keys [][]byte) (map[string][]byte, error,
) {
	return c.ledgerRecords(ctx, ledger, keys, nil, checkHead)
}

// ledgerRecords reads records at head, or in another version. The check is that of the version.
func (c *Client) ledgerRecords(
	ctx context.Context, ledger LedgerID, keys [][]byte, read *Read,
	check func(*verify.Verified, known) error,
) (map[string][]byte, error) {
	asked := slices.Clone(keys)
	slices.SortFunc(asked, bytes.Compare)
	asked = slices.CompactFunc(asked, bytes.Equal)
	k := c.known()
	request := &v1.GetLedgerRecordsRequest{
		Ledger: identified(ledger), Keys: asked, Read: c.recordOptions(read),
	}
	answer, err := invoke(ctx, c, "GetLedgerRecords", safe, request, v1.LedgerClient.GetLedgerRecords)
	if err != nil {
		return nil, err
	}
	records, err := recordsOf(asked, answer.Records)
	if err == nil && c.trust != nil {
		err = c.believe(ctx, k, answer.Proof, verify.AboutKeys(asked), func(v *verify.Verified) error {
			for _, key := range asked {
				told, has := records[string(key)]
				if value, found, err := provenValue(v, key); err != nil {
					return err
				} else if found != has || !bytes.Equal(value, told) {
					return errDisagree
				}
			}
			return check(v, k)
		})
	}
	if err != nil {
		return nil, distrusted("GetLedgerRecords", err)
	}
	return records, nil
}

// recordsOf reads an answer, which has each key that was asked for once and in order.
func recordsOf(asked [][]byte, told []*v1.LedgerRecord) (map[string][]byte, error) {
	same := func(key []byte, record *v1.LedgerRecord) bool { return bytes.Equal(key, record.GetKey()) }
	if !slices.EqualFunc(asked, told, same) {
		return nil, errors.New("other records than were asked for")
	}
	records := make(map[string][]byte, len(told))
	for _, record := range told {
		if record.Value != nil {
			records[string(record.Key)] = record.Value
		}
	}
	return records, nil
}

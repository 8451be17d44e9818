// Command etcd-drive puts load on etcd, through etcd's own client.
//
// A batch of one is a put. A larger batch is a sequence of transactions with 128 puts each, etcd's
// own limit.
package main

import (
	"context"
	"fmt"
	"time"

	"coppice.dev/loadtest/drive"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// transactionMax is etcd's default for --max-txn-ops.
const transactionMax = 128

type client struct{ etcd *clientv3.Client }

func (client client) Write(ctx context.Context, keys, values [][]byte) error {
	if len(keys) == 1 {
		_, err := client.etcd.Put(ctx, string(keys[0]), string(values[0]))
		return err
	}
	for first := 0; first < len(keys); first += transactionMax {
		end := min(first+transactionMax, len(keys))
		puts := make([]clientv3.Op, 0, end-first)
		for index := first; index < end; index++ {
			puts = append(puts, clientv3.OpPut(string(keys[index]), string(values[index])))
		}
		if _, err := client.etcd.Txn(ctx).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (client client) Read(ctx context.Context, key []byte) error {
	response, err := client.etcd.Get(ctx, string(key))
	if err == nil && len(response.Kvs) != 1 {
		return fmt.Errorf("%s is not there", key)
	}
	return err
}

func main() {
	drive.Main("etcd", func(_ context.Context, options drive.Options, index int) (drive.Client, error) {
		// Each client begins with a different member.
		endpoints := append([]string{}, options.Endpoints[index%len(options.Endpoints):]...)
		endpoints = append(endpoints, options.Endpoints[:index%len(options.Endpoints)]...)
		etcd, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
		return client{etcd}, err
	})
}

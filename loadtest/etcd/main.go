// Command etcd-drive puts load on etcd, through etcd's own client.
//
// A batch of one is a put. A larger batch is a sequence of transactions with 128 puts each, etcd's
// own limit. Reads are linearizable: a get, or such transactions of gets.
package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"coppice.dev/loadtest/drive"
	"go.etcd.io/etcd/api/v3/mvccpb"
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
	puts := make([]clientv3.Op, len(keys))
	for index := range keys {
		puts[index] = clientv3.OpPut(string(keys[index]), string(values[index]))
	}
	for part := range slices.Chunk(puts, transactionMax) {
		if _, err := client.etcd.Txn(ctx).Then(part...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (client client) Read(ctx context.Context, keys [][]byte) error {
	if len(keys) == 1 {
		response, err := client.etcd.Get(ctx, string(keys[0]))
		if err != nil {
			return err
		}
		return found(keys[0], response.Kvs)
	}
	for part := range slices.Chunk(keys, transactionMax) {
		gets := make([]clientv3.Op, len(part))
		for index, key := range part {
			gets[index] = clientv3.OpGet(string(key))
		}
		response, err := client.etcd.Txn(ctx).Then(gets...).Commit()
		if err != nil {
			return err
		}
		for index, one := range response.Responses {
			if err := found(part[index], one.GetResponseRange().Kvs); err != nil {
				return err
			}
		}
	}
	return nil
}

func found(key []byte, pairs []*mvccpb.KeyValue) error {
	if len(pairs) != 1 {
		return fmt.Errorf("%s is not there", key)
	}
	return nil
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

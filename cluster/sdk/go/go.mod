module coppice.dev/sdk

go 1.26

import com.dylibso.chicory.runtime.Instance;
import com.dylibso.chicory.wasm.Parser;
import com.google.protobuf.ByteString;
import dev.coppice.v1.Batch;
import dev.coppice.v1.CommitRequest;
import dev.coppice.v1.GetRequest;
import dev.coppice.v1.LedgerGrpc;
import dev.coppice.v1.Operation;
import dev.coppice.v1.ReadOptions;
import dev.coppice.v1.Stamp;
import dev.coppice.v1.WatchHeadsRequest;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/** Walk HOST:PORT LEDGER.VKEY VERIFY.WASM */
public class Walk {
    // Kinds of the fields of a request to the verifier: docs/proof-files.md.
    static final int FILE = 1, KEY = 2, EXPECT_KEY = 5, VERSION = 9;

    public static void main(String[] args) throws Exception {
        var verifier = new Verifier(Path.of(args[2]), Files.readAllBytes(Path.of(args[1])));
        var channel = NettyChannelBuilder.forTarget(args[0]).usePlaintext().build();
        var ledger = LedgerGrpc.newBlockingStub(channel);
        var key = ByteString.copyFromUtf8("java/alice");

        // A commit, with the receipt that the ledger has signed it.
        var put = Operation.newBuilder().setKey(key).setPut(ByteString.copyFromUtf8("100"));
        var batch = Batch.newBuilder().addOperations(put);
        var write = CommitRequest.newBuilder().setBatch(batch).setWantReceipt(true).build();
        var done = ledger.withDeadlineAfter(30, TimeUnit.SECONDS).commit(write);
        verifier.verify(done.getReceipt(), done.getStamp(), null);
        System.out.println("committed in version " + done.getStamp().getVersion());

        // A read at that version, whose proof must be of this key.
        var at = ReadOptions.newBuilder().setAt(done.getStamp()).setWantProof(true);
        var read = GetRequest.newBuilder().setKey(key).setRead(at).build();
        var got = ledger.withDeadlineAfter(30, TimeUnit.SECONDS).get(read);
        var proven = verifier.verify(got.getProof(), done.getStamp(), key);
        var value = got.getRecord().getValue().toStringUtf8();
        if (!proven.contains("\"value_sha256\":\"" + sha256(value) + "\"")) {
            throw new IllegalStateException("the value is not the one that is proven");
        }
        System.out.println("java/alice is " + value + " in version " + got.getReadAt().getVersion());

        // What the ledger does, as it comes: the word of a coordinator.
        var watch = WatchHeadsRequest.newBuilder().setFromSequence(1).setFollow(true).build();
        var entries = ledger.withDeadlineAfter(30, TimeUnit.SECONDS).watchHeads(watch);
        System.out.println("an entry of " + entries.next().getHeader().size() + " bytes");
        channel.shutdownNow();
    }

    static String sha256(String text) throws Exception {
        var hash = java.security.MessageDigest.getInstance("SHA-256");
        return java.util.HexFormat.of().formatHex(hash.digest(text.getBytes(StandardCharsets.UTF_8)));
    }

    /** Checks proofs by the verifier of all languages, a WebAssembly module without imports. */
    static class Verifier {
        private final Instance module;
        private final byte[] vkey;

        Verifier(Path wasm, byte[] vkey) {
            this.module = Instance.builder(Parser.parse(wasm.toFile())).build();
            this.vkey = vkey;
        }

        /** What a proof says, as JSON. It must be of this version, and of this key if there is one. */
        String verify(ByteString proof, Stamp version, ByteString key) {
            var request = new ByteArrayOutputStream();
            field(request, FILE, proof.toByteArray());
            field(request, KEY, vkey);
            field(request, VERSION, Long.toUnsignedString(version.getVersion()).getBytes(StandardCharsets.UTF_8));
            if (key != null) {
                field(request, EXPECT_KEY, key.toByteArray());
            }
            int length = request.size();
            int from = (int) module.export("alloc").apply(length)[0];
            if (from == 0) {
                throw new IllegalStateException("the proof is too long");
            }
            module.memory().write(from, request.toByteArray());
            long answer = module.export("verify").apply(from, length)[0];
            var json = module.memory().readString((int) answer, (int) (answer >>> 32));
            module.export("free").apply(from, length);
            module.export("free").apply((int) answer, (int) (answer >>> 32));
            if (!json.startsWith("{\"valid\":true,")) {
                throw new IllegalStateException("the proof does not hold: " + json);
            }
            return json;
        }

        private static void field(ByteArrayOutputStream request, int kind, byte[] data) {
            request.write(kind);
            request.writeBytes(ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(data.length).array());
            request.writeBytes(data);
        }
    }
}

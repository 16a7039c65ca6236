// Ollama's client in JavaScript against a gateway: a chat, a stream, a call, the model, as JSON.
import { Ollama } from 'ollama';

const [host, apiKey, model] = process.argv.slice(2);
const client = new Ollama({ host, headers: { Authorization: `Bearer ${apiKey}` } });
const wish = { model, messages: [{ role: 'user', content: 'Hi' }] };

const whole = await client.chat(wish);
let streamed = '';
for await (const part of await client.chat({ ...wish, stream: true })) streamed += part.message.content;

const parameters = { type: 'object', properties: { city: { type: 'string' } } };
const weather = { name: 'weather', description: 'Reports the weather.', parameters };
const called = await client.chat({ ...wish, tools: [{ type: 'function', function: weather }] });
const calls = called.message.tool_calls.map((call) => [call.function.name, call.function.arguments]);

const [listed] = (await client.list()).models;
const { capabilities } = await client.show({ model });
console.log(JSON.stringify([whole.message.content, streamed, calls, listed.name, capabilities]));
